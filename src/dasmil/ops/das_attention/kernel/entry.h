// The kernel's three entry points for one instruction set.
#pragma once

#include "kernel.h"

namespace DAS_ISA {

int64_t entry_scratch(const das_problem *p, int backward) { return scratch(*p, backward != 0); }
int entry_run(const das_problem *p, int backward) { return run(*p, backward != 0); }

}  // namespace DAS_ISA
