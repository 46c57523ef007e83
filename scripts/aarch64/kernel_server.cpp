// Runs calls of both kernels that remote_kernels.py sends over standard input; linked with the kernels and run by qemu.
// A request: operation, bytes of the problem, the problem, number of arrays; for each array the place of its pointer in
// the problem, its bytes, whether it is a result, and unless it is one its content. An answer: the status, the results.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "../../src/dasmil/ops/conv_pool/kernel/problem.h"
#include "../../src/dasmil/ops/das_attention/kernel/das_attention.h"

extern "C" int conv_pool_forward(const conv_pool_problem *p);
extern "C" int conv_pool_backward(const conv_pool_problem *p);

enum { DAS_FORWARD = 0, DAS_BACKWARD = 1, CONV_FORWARD = 2, CONV_BACKWARD = 3, DAS_HAS = 4, ABOUT = 5 };

static void take(void *place, size_t bytes) {
  if (bytes && fread(place, 1, bytes, stdin) != bytes) exit(0);  // the other side has ended
}

static int64_t number() {
  int64_t value;
  take(&value, sizeof value);
  return value;
}

static void give(const void *place, size_t bytes) {
  if (bytes && fwrite(place, 1, bytes, stdout) != bytes) exit(1);
}

static void give(int64_t value) { give(&value, sizeof value); }

struct Array {
  void *place;
  size_t bytes;
  bool result;
};

static void *aligned(size_t bytes) { return aligned_alloc(64, (bytes / 64 + 1) * 64); }

static int64_t run(int64_t operation, char *problem) {
  if (operation == CONV_FORWARD) return conv_pool_forward(reinterpret_cast<conv_pool_problem *>(problem));
  if (operation == CONV_BACKWARD) return conv_pool_backward(reinterpret_cast<conv_pool_problem *>(problem));
  das_problem *p = reinterpret_cast<das_problem *>(problem);
  p->scratch = aligned(static_cast<size_t>(das_scratch(p, operation == DAS_BACKWARD)));
  const int64_t status = operation == DAS_BACKWARD ? das_backward(p) : das_forward(p);
  free(p->scratch);
  return status;
}

static void call(int64_t operation) {
  const size_t bytes = static_cast<size_t>(number());
  char *problem = static_cast<char *>(aligned(bytes));
  take(problem, bytes);
  std::vector<Array> arrays(static_cast<size_t>(number()));
  for (Array &array : arrays) {
    const int64_t pointer = number();
    array.bytes = static_cast<size_t>(number());
    array.result = number() != 0;
    array.place = aligned(array.bytes);
    memset(array.place, 0x7f, array.bytes);  // a result that the kernel does not write is seen
    if (!array.result) take(array.place, array.bytes);
    memcpy(problem + pointer, &array.place, sizeof array.place);
  }
  give(run(operation, problem));
  for (const Array &array : arrays) {
    if (array.result) give(array.place, array.bytes);
    free(array.place);
  }
  free(problem);
}

static int64_t about(int64_t what) {
  switch (what) {
    case 0: return sizeof(das_problem);
    case 1: return sizeof(conv_pool_problem);
    case 2: return das_has_openmp();
#if defined(__aarch64__) && defined(__ARM_NEON)
    case 3: return 1;
#endif
    default: return 0;
  }
}

int main() {
  for (;;) {
    const int64_t operation = number();
    if (operation == DAS_HAS) {
      give(das_has(number()));
    } else if (operation == ABOUT) {
      give(about(number()));
    } else {
      call(operation);
    }
    fflush(stdout);
  }
}
