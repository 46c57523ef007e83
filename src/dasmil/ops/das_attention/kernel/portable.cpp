// The same kernel for any CPU: the compiler maps the eight lanes to what the target has.
#define DAS_ISA das_portable
#include "entry.h"
