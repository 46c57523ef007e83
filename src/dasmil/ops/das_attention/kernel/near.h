// Which stretches of instances lie within the radius of some others: boxes around stretches, around 32 stretches each, and
// around 32 of these.
#pragma once

#include "bag.h"

namespace DAS_ISA {

struct Box {
  float low[3], high[3];
  int32_t first_section, last_section;
  bool token;  // holds a token, which sees all and is seen by all

  void clear() {
    for (int x = 0; x < 3; ++x) low[x] = INF, high[x] = -INF;
    first_section = INT32_MAX, last_section = INT32_MIN;
    token = false;
  }
  void add(const Box &other) {
    for (int x = 0; x < 3; ++x) {
      low[x] = other.low[x] < low[x] ? other.low[x] : low[x];
      high[x] = other.high[x] > high[x] ? other.high[x] : high[x];
    }
    first_section = other.first_section < first_section ? other.first_section : first_section;
    last_section = other.last_section > last_section ? other.last_section : last_section;
    token |= other.token;
  }
  // Whether a pair of the two may be seen. `reach` has some room for the roundings of the pair's own distance.
  bool near(const Box &other, int64_t axes, float reach) const {
    if (token || other.token) return true;
    if (first_section > other.last_section || other.first_section > last_section) return false;
    float squared = 0;
    for (int64_t x = 0; x < axes; ++x) {
      const float above = low[x] - other.high[x], below = other.low[x] - high[x];
      const float gap = above > below ? above : below;
      if (gap > 0) squared += gap * gap;
    }
    return squared <= reach;
  }
};

inline Box box_of(const Bag &bag, int64_t from, int64_t to) {
  Box box;
  box.clear();
  for (int64_t j = from; j < least(to, bag.n); ++j) {
    Box one;
    for (int64_t x = 0; x < 3; ++x) one.low[x] = one.high[x] = x < bag.axes ? bag.axis[x][j] : 0;
    one.first_section = one.last_section = bag.section ? bag.section[j] : 0;
    one.token = bag.section && bag.section[j] < 0;
    box.add(one);
  }
  return box;
}

// The stretches [0, size), [size, 2 size), ... of a bag.
struct Stretches {
  static constexpr int64_t MANY = 32;
  int64_t size, count, groups, regions;
  Box *each, *many, *most;

  Stretches(int64_t n, int64_t size, bool used, Arena &arena) : size(size) {
    count = used ? (n + size - 1) / size : 0;
    groups = (count + MANY - 1) / MANY;
    each = arena.take<Box>(count);
    regions = (groups + MANY - 1) / MANY;
    many = arena.take<Box>(groups);
    most = arena.take<Box>(regions);
  }

  void pack(const Bag &bag) {
    for (int64_t s = 0; s < count; ++s) each[s] = box_of(bag, s * size, (s + 1) * size);
    join(each, count, many);
    join(many, groups, most);
  }

  // Those near `box`, in their order; returns how many.
  int64_t near(const Box &box, const Bag &bag, int32_t *list) const {
    const float reach = bag.reach * 1.00001f;
    int64_t found = 0;
    for (int64_t r = 0; r < regions; ++r) {
      if (!box.near(most[r], bag.axes, reach)) continue;
      for (int64_t g = r * MANY; g < least(groups, (r + 1) * MANY); ++g) {
        if (!box.near(many[g], bag.axes, reach)) continue;
        for (int64_t s = g * MANY; s < least(count, (g + 1) * MANY); ++s)
          if (box.near(each[s], bag.axes, reach)) list[found++] = static_cast<int32_t>(s);
      }
    }
    return found;
  }

 private:
  static void join(const Box *parts, int64_t count, Box *whole) {
    for (int64_t g = 0; g * MANY < count; ++g) {
      whole[g].clear();
      for (int64_t s = g * MANY; s < least(count, (g + 1) * MANY); ++s) whole[g].add(parts[s]);
    }
  }
};

// Columns gathered from stretches of GROUP columns all over the bag.
struct Gathered {
  float *k, *v, *axis[3], *gc, *c;
  int32_t *section, *ids, *seen;

  Gathered(const Bag &bag, Arena &arena) {
    k = arena.take(bag.d * TJ);
    v = arena.take(bag.o * TJ);
    for (int64_t x = 0; x < 3; ++x) axis[x] = x < bag.axes ? arena.take(TJ) : nullptr;
    gc = bag.mode != LEAN ? arena.take(TJ) : nullptr;
    c = arena.take(TJ);
    section = arena.take<int32_t>(TJ);
    ids = arena.take<int32_t>(TJ);
    seen = arena.take<int32_t>(TJ);
  }

  Columns take(const Bag &bag, const int32_t *list, int64_t count) {
    for (int64_t g = 0; g < count; ++g) {
      const int64_t j0 = list[g] * GROUP, at = g * GROUP;
      const Columns from = bag.columns(j0, GROUP);
      for (int64_t x = 0; x < bag.d; ++x) copy(k + x * TJ + at, from.k + x * TJ);
      for (int64_t x = 0; x < bag.o; ++x) copy(v + x * TJ + at, from.v + x * TJ);
      for (int64_t x = 0; x < bag.axes; ++x) copy(axis[x] + at, from.axis[x]);
      if (gc) copy(gc + at, from.gc);
      copy(c + at, from.c);
      for (int64_t j = 0; j < GROUP; ++j) {
        if (bag.section) section[at + j] = from.section[j];
        ids[at + j] = from.ids[j];
        seen[at + j] = from.seen[j];
      }
    }
    if (count % 2) {  // the products take 16 columns at a time
      const int64_t at = count * GROUP;
      for (int64_t x = 0; x < bag.d; ++x) store(k + x * TJ + at, vf{});
      for (int64_t x = 0; x < bag.o; ++x) store(v + x * TJ + at, vf{});
      for (int64_t x = 0; x < bag.axes; ++x) store(axis[x] + at, vf{});
      if (gc) store(gc + at, vf{});
      store(c + at, vf{});
      for (int64_t j = at; j < at + GROUP; ++j) section[j] = ids[j] = -1, seen[j] = 0;
      ++count;
    }
    return Columns{k, v, {axis[0], axis[1], axis[2]}, gc, c, nullptr, bag.section ? section : nullptr, ids, seen,
                   count * GROUP};
  }

 private:
  static void copy(float *to, const float *from) {
    static_assert(GROUP == W, "one vector");
    store(to, load(from));
  }
};

}  // namespace DAS_ISA
