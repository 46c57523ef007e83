// Who lies within the radius of whom: boxes around leaves (instances that follow one another in the order and so lie together
// in space), around 32 leaves each, and around 32 of these.
#pragma once

#include "bag.h"

namespace DAS_ISA {

struct Box {
  float low[3], high[3];
  int32_t first_section, last_section;
  bool token;  // holds a token, which sees all and is seen by all
  bool seen;   // not all of it is padding

  void clear() {
    for (int x = 0; x < 3; ++x) low[x] = INF, high[x] = -INF;
    first_section = INT32_MAX, last_section = INT32_MIN;
    token = seen = false;
  }
  void add(const Box &other) {
    for (int x = 0; x < 3; ++x) {
      low[x] = other.low[x] < low[x] ? other.low[x] : low[x];
      high[x] = other.high[x] > high[x] ? other.high[x] : high[x];
    }
    first_section = other.first_section < first_section ? other.first_section : first_section;
    last_section = other.last_section > last_section ? other.last_section : last_section;
    token |= other.token;
    seen |= other.seen;
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
    one.seen = bag.seen[j] != 0;
    box.add(one);
  }
  return box;
}

// The instances [0, LEAF), [LEAF, 2 LEAF), ... of a bag.
struct Leaves {
  static constexpr int64_t MANY = 32;
  int64_t count, groups, regions;
  Box *each, *many, *most;

  Leaves(int64_t n, bool used, Arena &arena) {
    count = used ? (n + LEAF - 1) / LEAF : 0;
    groups = (count + MANY - 1) / MANY;
    regions = (groups + MANY - 1) / MANY;
    each = arena.take<Box>(count);
    many = arena.take<Box>(groups);
    most = arena.take<Box>(regions);
  }

  void pack(const Bag &bag) {
    for (int64_t s = 0; s < count; ++s) each[s] = box_of(bag, s * LEAF, (s + 1) * LEAF);
    join(each, count, many);
    join(many, groups, most);
  }

  // The columns that rows of the leaf may see, or (`rows`) the rows that may see its columns, in their order; returns how
  // many. The list has room for all and for one vector more.
  int64_t near(int64_t leaf, const Bag &bag, bool rows, int32_t *list) const {
    const float reach = bag.reach * 1.00001f;
    const Box &box = each[leaf];
    int64_t found = 0;
    if (rows && !box.seen) return choose(box, bag, leaf * LEAF, reach, vi{} == 0, list);
    for (int64_t r = 0; r < regions; ++r) {
      if (!box.near(most[r], bag.axes, reach)) continue;
      for (int64_t g = r * MANY; g < least(groups, (r + 1) * MANY); ++g) {
        if (!box.near(many[g], bag.axes, reach)) continue;
        for (int64_t s = g * MANY; s < least(count, (g + 1) * MANY); ++s)
          if (box.near(each[s], bag.axes, reach))
            found += choose(box, bag, s * LEAF, reach, rows || s == leaf ? vi{} == 0 : vi{}, list + found);
      }
    }
    return found;
  }

 private:
  // Of the leaf that begins with instance j0 those within `reach` of the box. Padding counts only where `hidden`: it sees,
  // but is seen by nobody but itself.
  static int64_t choose(const Box &box, const Bag &bag, int64_t j0, float reach, vi hidden, int32_t *list) {
    int64_t found = 0;
    for (int64_t j = j0; j < j0 + LEAF; j += W) {
      vf squared{};
      for (int64_t x = 0; x < bag.axes; ++x) {
        const vf at = load(bag.axis[x] + j);
        const vf gap = at_least(0.0f, larger(at - box.high[x], box.low[x] - at));
        squared = fma(gap, gap, squared);
      }
      vi near = squared <= reach;
      if (bag.section) {
        const vi section = load(bag.section + j);
        near &= (section >= box.first_section) & (section <= box.last_section);
        near |= section < 0;
      }
      if (box.token) near = vi{} == 0;
      near &= (hidden | (load(bag.seen + j) != 0)) & (load(bag.ids + j) >= 0);
      found += append(list + found, near, static_cast<int32_t>(j));
    }
    return found;
  }

  static void join(const Box *parts, int64_t count, Box *whole) {
    for (int64_t g = 0; g * MANY < count; ++g) {
      whole[g].clear();
      for (int64_t s = g * MANY; s < least(count, (g + 1) * MANY); ++s) whole[g].add(parts[s]);
    }
  }
};

// The rows of a leaf along the lanes: to[x][LEAF] = factor * rows[r][x]; `nothing` (zeros) after the last of them.
inline void turn_in(const float **rows, int64_t real, const float *nothing, int64_t size, float factor, float *to) {
  for (int64_t r = real; r < LEAF; ++r) rows[r] = nothing;
  for (int64_t r = 0; r < LEAF; r += 8) transpose8(rows + r, size, factor, to + r, LEAF);
}

// And back: to[r][size] = from[x][LEAF].
inline void turn_out(const float *from, int64_t size, float *to) {
  int64_t x = 0;
  for (; x + 8 <= size; x += 8) {
    const float *rows[8];
    for (int y = 0; y < 8; ++y) rows[y] = from + (x + y) * LEAF;
    transpose8(rows, LEAF, 1.0f, to + x, size);
  }
  for (; x < size; ++x)
    for (int64_t r = 0; r < LEAF; ++r) to[r * size + x] = from[x * LEAF + r];
}

}  // namespace DAS_ISA
