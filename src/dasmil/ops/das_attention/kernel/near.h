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
  float *k, *v, *v_rows, *axis[3], *gc, *c, *nothing;
  const float **k_at, **v_at;  // where the rows lie: as they came, but values with v_V
  int32_t *section, *ids, *seen;

  Gathered(const Bag &bag, Arena &arena) {
    const int64_t used = bag.local;
    k = arena.take(used * bag.d * TJ);
    v = arena.take(used && !bag.wide_v ? bag.o * TJ : 0);
    v_rows = arena.take(used && bag.mode == WHOLE ? TJ * bag.o : 0);
    k_at = arena.take<const float *>(used * TJ);
    v_at = arena.take<const float *>(used * TJ);
    for (int64_t x = 0; x < 3; ++x) axis[x] = x < bag.axes ? arena.take(used * TJ) : nullptr;
    gc = bag.mode != LEAN ? arena.take(used * TJ) : nullptr;
    c = bag.mode == PARTIAL ? arena.take(used * TJ) : nullptr;
    nothing = arena.take(used * most(bag.d, bag.o));
    section = arena.take<int32_t>(used * TJ);
    ids = arena.take<int32_t>(used * TJ);
    seen = arena.take<int32_t>(used * TJ);
  }

  // The `count` stretches of the list, or those from `first` on where there is no list; values times `factor`.
  Columns take(const Bag &bag, const int32_t *list, int64_t first, int64_t count, float factor) {
    for (int64_t g = 0; g < count; ++g) {
      if (list && g + AHEAD < count) fetch_stretch(bag, list[g + AHEAD] * GROUP);
      take_stretch(bag, (list ? list[g] : first + g) * GROUP, g * GROUP, factor);
    }
    const int64_t real = count * GROUP, width = (count + 1) / 2 * 2 * GROUP;  // the products take 16 columns at a time
    if (width > real) clear_stretch(bag, real);
    Columns to;
    to.k = k;
    to.v = bag.wide_v ? nullptr : v;
    to.k_rows = to.v_rows = nullptr;
    to.k_at = bag.wide_k ? k_at : nullptr;
    to.v_at = bag.wide_v ? v_at : nullptr;
    for (int x = 0; x < 3; ++x) to.axis[x] = axis[x];
    to.gc = gc;
    to.c = c ? c : axis[0];  // not read where it is not c
    to.start = nullptr;
    to.section = bag.section ? section : nullptr;
    to.ids = ids;
    to.seen = seen;
    to.width = width;
    to.real = real;
    return to;
  }

 private:
  static constexpr int64_t AHEAD = 3;  // stretches whose rows are on their way

  static void fetch_stretch(const Bag &bag, int64_t j0) {
    for (int64_t r = 0; r < GROUP; ++r) {
      const int64_t id = most(bag.ids[j0 + r], 0);
      fetch(bag.key + id * bag.d, bag.d);
      fetch(bag.value + id * bag.o, bag.o);
    }
  }
  static void copy(float *to, const float *from) { memcpy(to, from, GROUP * sizeof(float)); }
  static void copy(int32_t *to, const int32_t *from) { memcpy(to, from, GROUP * sizeof(int32_t)); }

  void take_stretch(const Bag &bag, int64_t j0, int64_t at, float factor) {
    static_assert(GROUP == 8, "transpose8");
    const int64_t d = bag.d, o = bag.o;
    for (int64_t r = 0; r < GROUP; ++r) {
      const int32_t id = bag.ids[j0 + r];
      if (id < 0) fill(nothing, nothing + most(d, o), 0.0f);
      k_at[at + r] = id < 0 ? nothing : bag.key + id * d;
      v_at[at + r] = id < 0 ? nothing : bag.row_value(j0 + r, v_rows + (at + r) * o);
    }
    transpose8(k_at + at, d, 1.0f, k + at, TJ);
    if (!bag.wide_v) transpose8(v_at + at, o, factor, v + at, TJ);
    for (int64_t x = 0; x < bag.axes; ++x) copy(axis[x] + at, bag.axis[x] + j0);
    if (gc) copy(gc + at, bag.gc + j0);
    if (c) copy(c + at, bag.c + j0);
    if (bag.section) copy(section + at, bag.section + j0);
    copy(ids + at, bag.ids + j0);
    copy(seen + at, bag.seen + j0);
  }

  void clear_stretch(const Bag &bag, int64_t at) {
    for (int64_t r = at; r < at + GROUP; ++r) {
      for (int64_t x = 0; x < bag.d; ++x) k[x * TJ + r] = 0;
      for (int64_t x = 0; x < bag.o && !bag.wide_v; ++x) v[x * TJ + r] = 0;
      for (int64_t x = 0; x < bag.axes; ++x) axis[x][r] = 0;
      if (gc) gc[r] = 0;
      if (c) c[r] = 0;
      section[r] = ids[r] = -1;
      seen[r] = 0;
    }
  }
};

}  // namespace DAS_ISA
