// Convolution as a matrix product on the tensor cores of sm_90, with the accuracy of float32.
//
//   y[m][k] = sum over q of x[pixel(m, tap(q))][channel(q)] * w[k][q]        NHWC, float32
//
// m counts output pixels over (n, oh, ow), q products over (c / 32, r, s, c % 32), or over
// (r, s, c) where 32 does not divide the channels of a group. A step is 32 products. Each float32
// is split into two fp16, high and low, behind a power of two that lifts the largest of an image
// (of a filter) to 2^13 .. 2^14; low * high, high * low and high * high are summed by wgmma.
// Tensor cores add with truncation: the sums leave them every kPromote steps and are added in
// float32.
//
//   a block          a producer warpgroup, a consumer warpgroup every 64 rows; lives for all tiles
//   a stage          A (kRows, 32) float32 and B (kFilters, 32) fp16 high | low, both in rows of
//                    128 bytes whose 16-byte pieces are permuted by row % 8 (wgmma's swizzle)
//   A                cp.async, 4 channels each, zeros outside the map; split in registers. Or a
//                    patch: 32 channels of all that a box of output pixels looks at, for all taps
//   B                one bulk copy of what pack.py laid out
//
// Three permutations cost nothing, since the weights are packed at compile time:
//   products   position 8 b + 2 t + e of 16 in B is product 4 t + 2 b + e: a thread's 16 bytes of A
//              are the four elements of its fragment
//   pixels     fragment row g of 8 is row g / 2 + 4 (g % 2) of A: 16-byte loads meet no bank twice
//   filters    column 8 b + 2 t + e of 16 in B is filter 4 t + 2 b + e: a thread ends with four
//              neighbours, and stores 16 bytes from its registers

// For compute-sanitizer's racecheck, which follows a barrier from a load only if the thread that
// loaded arrives itself: define it as true. Else a lane arrives for its warp.
#ifndef EVERY_LANE_ARRIVES
#define EVERY_LANE_ARRIVES false
#endif

namespace tensor_core {

constexpr int kStep = 32;         // products
constexpr int kRowBytes = 128;    // of 32 float32, or of 32 fp16 high and 32 low
constexpr int kWarpgroup = 128;   // threads
constexpr int kVector = 4;        // channels that a thread copies at once
constexpr int kConsumers = 1;     // named barriers: of each consumer from here on, kProducers
constexpr int kProducers = 4;
constexpr int kPatchCopiers = 96;  // threads; the producers' last warp copies B then
constexpr int kOutside = -(1 << 14);  // a row of the map that no tap brings back inside

// The knobs of a kernel; schedules/tensor_core/config.py says what they are.
template <int kRows_, int kFilters_, int kPromote_, int kStages_, int kPatch_, bool kOrdered_>
struct Config {
  static constexpr int kRows = kRows_, kFilters = kFilters_, kPromote = kPromote_;
  static constexpr int kStages = kStages_, kPatch = kPatch_;  // rows of a patch; 0: no patch
  static constexpr bool kOrdered = kOrdered_;
  static constexpr int kWarpgroups = kRows / 64;    // consumers
  static constexpr int kThreads = kWarpgroups * kWarpgroup;  // of the consumers
  static constexpr int kArrivals = EVERY_LANE_ARRIVES ? kThreads : kThreads / 32;
  static constexpr int kSums = kFilters / 2;        // of a thread
  static constexpr int kGroups = kFilters / 16;     // of filters, eight sums each
  static constexpr int kA = kPatch ? 0 : kRows * kRowBytes, kB = kFilters * kRowBytes;
  static constexpr int kPatches = kStages * (kA + kB);  // bytes before, as the next two
  static constexpr int kTables = kPatches + 2 * kPatch * kRowBytes;
  static constexpr int kTable = kPatch ? kPatch * 4 : kRows * 8;  // bytes: where rows begin in x
  static constexpr int kBarriers = kTables + 2 * kTable;
  static constexpr int kShared = 1024 + kBarriers + 16 * (kStages + 2);  // 1024: to align the rest
};

// A convolution in elements, and the work's division; sizes.py lists the same fields.
struct Conv {
  int images, height, width, channels, out_height, out_width, filters;
  int taps_h, taps_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
  int peaks;   // values of `peaks` an image: the largest counts
  int whole;   // tiles that one block computes alone
  int shares;  // blocks that divide the steps of the other tiles among them
  int box_w, box_h, box_n;  // output pixels of a tile with a patch

  DEVICE int group_channels() const { return channels / groups; }
  // Channels that are counted before the next tap.
  DEVICE int run() const { return group_channels() % kStep == 0 ? kStep : group_channels(); }
  DEVICE int group_filters() const { return filters / groups; }
  DEVICE int rows() const { return images * out_height * out_width; }
  DEVICE int taps() const { return taps_h * taps_w; }
  DEVICE int patch_w() const { return box_w + (taps_w - 1) * dilation_w; }
  DEVICE int patch_h() const { return box_h + (taps_h - 1) * dilation_h; }
  DEVICE int boxes_w() const { return (out_width + box_w - 1) / box_w; }
  DEVICE int boxes_h() const { return (out_height + box_h - 1) / box_h; }
  DEVICE int image_of(int row) const { return min(row, rows() - 1) / (out_height * out_width); }
  DEVICE int steps() const { return (taps() * group_channels() + kStep - 1) / kStep; }
  template <class C> DEVICE int filter_tiles() const {
    return (group_filters() + C::kFilters - 1) / C::kFilters;
  }
  template <class C> DEVICE int columns() const { return groups * filter_tiles<C>(); }
  template <class C> DEVICE int tiles() const {
    const int boxes = C::kPatch ? boxes_w() * boxes_h() * ((images + box_n - 1) / box_n) : 0;
    return (C::kPatch ? boxes : (rows() + C::kRows - 1) / C::kRows) * columns<C>();
  }
  // The output pixel of a tile's row, or rows() where there is none.
  template <class C> DEVICE int row_at(int tile, int row) const {
    const int at = tile / columns<C>();
    if (!C::kPatch) return min(at * C::kRows + row, rows());
    const int x = at % boxes_w() * box_w + row % box_w, n = row / (box_w * box_h);
    const int y = at / boxes_w() % boxes_h() * box_h + row / box_w % box_h;
    const int image = at / (boxes_w() * boxes_h()) * box_n + n;
    const bool inside = n < box_n && image < images && y < out_height && x < out_width;
    return inside ? (image * out_height + y) * out_width + x : rows();
  }
  // The first step of a share, counted over all tiles that are shared.
  DEVICE int share_begin(int share, int total) const {
    return share * total / shares;
  }
};

// What a kernel reads and writes; `bias`, `residual`, `peaks_out` may be null.
struct Arrays {
  const float* x;
  const unsigned* a;  // blocks of B, then a float32 per filter that undoes its scale
  const float* bias;
  const float* residual;
  const unsigned* peaks;
  float* parts;  // sums of shares of a tile
  float* y;
  unsigned* peaks_out;
};

struct Identity {
  static DEVICE float apply(float v) { return v; }
};
// An activation is a struct like this one, made of the package's table. NaN in the first place stays.
DEVICE float larger(float v, float bound) { return v < bound ? bound : v; }
DEVICE float smaller(float v, float bound) { return v > bound ? bound : v; }

// ---- The scale ----

// The largest |v| of an image as the bits of a float32, infinities and NaN left out: doubled and
// shifted up, finite magnitudes keep their order and the others wrap to less than any of them.
constexpr unsigned kFinite = 0x01000000u;
DEVICE unsigned rank_of(unsigned bits) { return bits * 2 + kFinite; }
DEVICE unsigned magnitude_of(unsigned rank) { return rank < kFinite ? 0 : (rank - kFinite) / 2; }

// A power of two that lifts `peak` to 2^13 .. 2^14, as far as float32 has one, and its inverse.
DEVICE int exponent_of(unsigned peak) { return max((int)(peak >> 23), 14); }
DEVICE float scale_of(unsigned peak) { return as_float((267 - exponent_of(peak)) << 23); }
DEVICE float unscale_of(unsigned peak) { return as_float((exponent_of(peak) - 13) << 23); }

// The largest rank of a block of 256 threads; `warps` is 8 words of shared memory.
DEVICE unsigned block_max(unsigned rank, unsigned* warps) {
  rank = max_of_lanes(0xffffffffu, rank);
  if (thread_index() % 32 == 0) warps[thread_index() / 32] = rank;
  block_barrier();
  for (int i = 0; i < 8; ++i) rank = max(rank, warps[i]);
  return rank;
}

// The part of an image whose largest |x| a block finds.
DEVICE void image_peaks(const float* x, unsigned* peaks, unsigned* warps, int image_size,
                        int parts) {
  const int part = block_index() % parts, vectors = image_size % 4 == 0 ? image_size / 4 : 0;
  const float* image = x + (size_t)(block_index() / parts) * image_size;
  unsigned rank = 0;
#pragma unroll 4
  for (int i = part * 256 + thread_index(); i < vectors; i += parts * 256) {
    const float4 v = load_constant4(image + 4 * i);
    rank = max(rank, max(max(rank_of(as_bits(v.x)), rank_of(as_bits(v.y))),
                         max(rank_of(as_bits(v.z)), rank_of(as_bits(v.w)))));
  }
#pragma unroll 4
  for (int i = 4 * vectors + part * 256 + thread_index(); i < image_size; i += parts * 256)
    rank = max(rank, rank_of(as_bits(load_constant(image + i))));
  rank = block_max(rank, warps);
  if (thread_index() == 0) store_global(peaks + block_index(), magnitude_of(rank));
}

// The channels of each group of x, padded with zeros to whole vectors, and the image's largest |x|
// as above where `peaks` is not null. x is NHWC, or NCHW if `planar`.
DEVICE void pad_channels(const float* x, float* padded, unsigned* peaks, unsigned* warps,
                         int pixels, int channels, int groups, int parts, int planar) {
  const int image = block_index() / parts, part = block_index() % parts;
  const int of_group = channels / groups, vectors = (of_group + kVector - 1) / kVector;
  const float* from = x + (size_t)image * pixels * channels;
  float* to = padded + (size_t)image * pixels * groups * vectors * kVector;
  unsigned rank = 0;
  for (int i = part * 256 + thread_index(); i < pixels * groups * vectors; i += parts * 256) {
    const int pixel = i / (groups * vectors), group = i / vectors % groups;
    float v[kVector] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const int c = i % vectors * kVector + e, channel = group * of_group + c;
      if (c >= of_group) continue;
      v[e] = load_constant(from + (planar ? channel * pixels + pixel : pixel * channels + channel));
      rank = max(rank, rank_of(as_bits(v[e])));
    }
    store_global4(to + (size_t)i * kVector, make_float4(v[0], v[1], v[2], v[3]));
  }
  if (peaks == nullptr) return;
  rank = block_max(rank, warps);
  if (thread_index() == 0) store_global(peaks + block_index(), magnitude_of(rank));
}

// ---- The work of a block ----

// A block's tiles: whole ones, blocks taking turns, then its share of the steps of the others.
template <class C> struct Work {
  const Conv& conv;
  const int steps, total, begin, end;  // total, begin, end: of shared steps
  int next_whole, at;
  int tile, first, last;  // what is to be done: steps first .. last - 1 of a tile
  int slot;               // of `parts`, where it is not the whole tile

  DEVICE explicit Work(const Conv& p)
      : conv(p),
        steps(p.steps()),
        total((p.tiles<C>() - p.whole) * steps),
        begin(block_index() < p.shares ? p.share_begin(block_index(), total) : 0),
        end(block_index() < p.shares ? p.share_begin(block_index() + 1, total) : 0),
        next_whole(block_index()),
        at(begin) {}

  DEVICE bool next() {
    if (next_whole < conv.whole) {
      tile = next_whole, first = 0, last = steps;
      next_whole += block_count();
      return true;
    }
    if (at >= end) return false;
    tile = conv.whole + at / steps, first = at % steps, last = min(steps, first + end - at);
    slot = 2 * block_index() + (at == begin ? 0 : 1);
    at += last - first;
    return true;
  }
  DEVICE bool whole() const { return last - first == steps; }
};

// Stages in turn, and the parity of their barriers.
template <class C> struct Ring {
  int stage = 0, phase = 0;
  DEVICE void advance() {
    if (++stage == C::kStages) stage = 0, phase ^= 1;
  }
};

template <class C> DEVICE unsigned stage_at(unsigned base, int stage) {
  return base + stage * (C::kA + C::kB);
}
template <class C> DEVICE unsigned full(unsigned base, int stage) {
  return base + C::kBarriers + 8 * stage;
}
template <class C> DEVICE unsigned empty(unsigned base, int stage) {
  return full<C>(base, stage) + 8 * C::kStages;
}
// Two patches.
template <class C> DEVICE unsigned patch_at(unsigned base, int slot) {
  return base + C::kPatches + slot * C::kPatch * kRowBytes;
}
template <class C> DEVICE unsigned patch_full(unsigned base, int slot) {
  return base + C::kBarriers + 16 * C::kStages + 8 * slot;
}
template <class C> DEVICE unsigned patch_empty(unsigned base, int slot) {
  return patch_full<C>(base, slot) + 16;
}
DEVICE unsigned swizzled(int row, int piece) {
  return row * kRowBytes + ((piece ^ (row & 7)) << 4);
}

// ---- The producer ----

// The product that a thread copies: its tap, and its channel `first + c`.
struct Tap {
  int r, s, c, first;
  DEVICE Tap(const Conv& p, int product) {
    const int run = p.run(), taps = p.taps(), tap = product / run % taps;
    r = tap / p.taps_w, s = tap % p.taps_w, c = product % run, first = product / run / taps * run;
  }
  DEVICE void advance(const Conv& p) {
    for (c += kStep; c >= p.run(); c -= p.run()) {
      if (++s < p.taps_w) continue;
      s = 0;
      if (++r == p.taps_h) r = 0, first += p.run();
    }
  }
};

// Where the window of a row of A begins: its offset in x; its place on the map, y and x in 16 bits.
DEVICE int2 window_of(const Conv& p, int row) {
  const int area = p.out_height * p.out_width, pixel = row % area;
  const int y = pixel / p.out_width * p.stride_h - p.pad_h;
  const int x = pixel % p.out_width * p.stride_w - p.pad_w;
  if (row >= p.rows()) return make_int2(0, kOutside * 65536);
  const int offset = ((row / area * p.height + y) * p.width + x) * p.channels;
  return make_int2(offset, y * 65536 | (x & 65535));
}

// A step of A: each thread copies four neighbouring products of several rows. Several windows are
// loaded at once: a producer's warp is alone on its scheduler, nothing else hides its waits.
template <class C>
DEVICE void gather(const Conv& p, const float* x, const Tap& tap, unsigned table, unsigned to) {
  constexpr int kColumns = kStep / kVector, kTurn = kWarpgroup / kColumns;
  constexpr int kTurns = C::kRows / kTurn, kAhead = kTurns > 8 ? kTurns / 2 : kTurns;
  const int piece = thread_index() % kColumns, dy = tap.r * p.dilation_h;
  const int dx = tap.s * p.dilation_w, channel = tap.first + tap.c;
  const int offset = (dy * p.width + dx) * p.channels + channel;
  const unsigned height = tap.first < p.group_channels() ? p.height : 0;  // 0: behind the last
#pragma unroll 1
  for (int first = thread_index() / kColumns; first < C::kRows; first += kAhead * kTurn) {
    int2 windows[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) windows[i] = load_shared_pair(table + 8 * (first + i * kTurn));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = first + i * kTurn;
      const bool valid = (unsigned)((windows[i].y >> 16) + dy) < height &&
                         (unsigned)((short)windows[i].y + dx) < (unsigned)p.width;
      copy16(to + swizzled(row, piece), x + (windows[i].x + offset), valid);
    }
  }
}

template <class C> DEVICE void produce(const Conv& p, const Arrays& arrays, unsigned base) {
  Ring<C> ring;
  unsigned table = base + C::kTables, other = table + C::kTable;
  for (Work<C> work(p); work.next();) {
    const int column = work.tile % p.columns<C>();
    const int first_row = work.tile / p.columns<C>() * C::kRows;
    for (int i = thread_index(); i < C::kRows; i += kWarpgroup)
      store_shared_pair(table + 8 * i, window_of(p, first_row + i));
    named_barrier(kProducers, kWarpgroup);
    const float* x = arrays.x + column / p.filter_tiles<C>() * p.group_channels();
    const unsigned* b = arrays.a + ((size_t)column * work.steps + work.first) * (C::kB / 4);
    Tap tap(p, work.first * kStep + thread_index() % (kStep / kVector) * kVector);
    for (int step = work.first; step < work.last; ++step, b += C::kB / 4) {
      const unsigned stage = stage_at<C>(base, ring.stage), barrier = full<C>(base, ring.stage);
      wait(empty<C>(base, ring.stage), ring.phase ^ 1);
      if (thread_index() == 0) {
        arrive_expecting(barrier, C::kB);
        copy_bulk(stage + C::kA, b, C::kB, barrier);
      }
      gather<C>(p, x, tap, table, stage);
      arrive_after_copies(barrier);
      tap.advance(p);
      ring.advance();
    }
    // The next tile's table is the other one: a thread may still read this.
    const unsigned read = table;
    table = other, other = read;
  }
  wait_for_copies();
}

// Where a row of a patch is in x, or a negative number outside the map.
template <class C> DEVICE int patch_row_of(const Conv& p, int tile, int row) {
  const int at = tile / p.columns<C>(), w = p.patch_w(), h = p.patch_h();
  const int x = at % p.boxes_w() * p.box_w - p.pad_w + row % w;
  const int y = at / p.boxes_w() % p.boxes_h() * p.box_h - p.pad_h + row / w % h;
  const int image = at / (p.boxes_w() * p.boxes_h()) * p.box_n + row / (w * h);
  const bool inside = image < p.images && (unsigned)y < (unsigned)p.height &&
                      (unsigned)x < (unsigned)p.width;
  return inside ? ((image * p.height + y) * p.width + x) * p.channels : -1;
}

// 32 channels of a patch from `x` on, by the threads of three warps.
DEVICE void copy_patch(const float* x, int rows, unsigned table, unsigned to) {
  constexpr int kTurn = kPatchCopiers / 8, kAhead = 8;
  const int piece = thread_index() % 8;
  for (int first = thread_index() / 8; first < rows; first += kAhead * kTurn) {
    int at[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      at[i] = load_shared_int(table + 4 * min(first + i * kTurn, rows - 1));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = first + i * kTurn;
      if (row >= rows) continue;
      copy16(to + swizzled(row, piece), x + (at[i] + piece * kVector), at[i] >= 0);
    }
  }
}

template <class C> DEVICE void produce_patches(const Conv& p, const Arrays& arrays, unsigned base) {
  const int rows = p.patch_w() * p.patch_h() * p.box_n;
  unsigned table = base + C::kTables, other = table + C::kTable;
  int slot = 0, phase = 0;
  for (Work<C> work(p); work.next();) {
    for (int i = thread_index(); i < rows; i += kPatchCopiers)
      store_shared_int(table + 4 * i, patch_row_of<C>(p, work.tile, i));
    named_barrier(kProducers, kPatchCopiers);
    const int group = work.tile % p.columns<C>() / p.filter_tiles<C>();
    const int first = work.first / p.taps(), last = (work.last - 1) / p.taps();
    for (int run = first; run <= last; ++run) {
      wait(patch_empty<C>(base, slot), phase ^ 1);
      const float* x = arrays.x + group * p.group_channels() + run * kStep;
      copy_patch(x, rows, table, patch_at<C>(base, slot));
      arrive_after_copies(patch_full<C>(base, slot));
      if (slot == 1) phase ^= 1;
      slot ^= 1;
    }
    const unsigned read = table;
    table = other, other = read;
  }
  wait_for_copies();
}

// B alone, by one thread.
template <class C> DEVICE void produce_weights(const Conv& p, const unsigned* a, unsigned base) {
  Ring<C> ring;
  for (Work<C> work(p); work.next();) {
    const int column = work.tile % p.columns<C>();
    const unsigned* b = a + ((size_t)column * work.steps + work.first) * (C::kB / 4);
    for (int step = work.first; step < work.last; ++step, b += C::kB / 4) {
      const unsigned barrier = full<C>(base, ring.stage);
      wait(empty<C>(base, ring.stage), ring.phase ^ 1);
      arrive_expecting(barrier, C::kB);
      copy_bulk(stage_at<C>(base, ring.stage) + C::kA, b, C::kB, barrier);
      ring.advance();
    }
  }
}

// ---- The store ----

// A thread's two rows of a tile: where they are, and the largest |x| of their images.
template <class C> struct Rows {
  int row[2];
  unsigned peak[2];

  // `thread` of the consumers' threads; four lanes hold a row.
  DEVICE Rows(const Conv& p, const unsigned* peaks, int tile, int thread) {
    const int lane = thread % 32, g = lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row[h] = p.row_at<C>(tile, thread / 32 * 16 + 8 * h + g / 2 + g % 2 * 4);
      const unsigned* of_image = peaks + p.image_of(row[h]) * p.peaks;
      unsigned most = 0;
#pragma unroll 4
      for (int j = lane % 4; j < p.peaks; j += 4) most = max(most, load_constant(of_image + j));
      most = max(most, xor_lane(most, 1));
      peak[h] = max(most, xor_lane(most, 2));
    }
  }
};

// Four neighbouring filters, the first `count` of them; all or none if `whole`.
DEVICE float4 load_filters(const float* from, int count, bool whole) {
  float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
  if (whole) {
    if (count > 0) v = load_constant4(from);
    return v;
  }
  if (count > 0) v.x = load_constant(from);
  if (count > 1) v.y = load_constant(from + 1);
  if (count > 2) v.z = load_constant(from + 2);
  if (count > 3) v.w = load_constant(from + 3);
  return v;
}
DEVICE void store_filters(float* to, float4 v, int count, bool whole) {
  if (whole) {
    if (count > 0) store_global4(to, v);
    return;
  }
  if (count > 0) store_global(to + 0, v.x);
  if (count > 1) store_global(to + 1, v.y);
  if (count > 2) store_global(to + 2, v.z);
  if (count > 3) store_global(to + 3, v.w);
}

// Tensor cores truncate what they add, so that every sum that leaves them is a little too small, by
// nearly the same part of itself whatever the data (docs/numerics.md). Left alone that would add up
// from layer to layer: it is given back here.
template <class C> DEVICE float corrected(float sum) {
  constexpr float kLost = C::kPromote == 1 ? 5.5e-8f : 1.4e-7f;
  return multiply_add(sum, kLost, sum);
}

// Both powers of two are undone one after the other, in the order in which nothing overflows that
// would not in the end.
template <class Activation>
DEVICE float finished(float sum, float below, float alpha, float above, float bias, float residual) {
  return Activation::apply(multiply_add(sum * below * alpha, above, bias) + residual);
}

// Sums of a tile to y.
template <class C, class Activation> struct Store {
  const Conv& p;
  const Arrays& arrays;
  const int column, filter, t;  // filter: the first of the tile, in its group of the convolution
  const bool whole;

  DEVICE Store(const Conv& conv, const Arrays& a, int tile)
      : p(conv),
        arrays(a),
        column(tile % p.columns<C>()),
        filter(column % p.filter_tiles<C>() * C::kFilters),
        t(thread_index() % 4),
        whole(p.group_filters() % 4 == 0) {}

  DEVICE int first_filter(int group) const { return filter + 16 * group + 4 * t; }
  // The place in y of a row's four filters.
  DEVICE size_t place(int row, int group) const {
    const int of_group = column / p.filter_tiles<C>() * p.group_filters();
    return (size_t)row * p.filters + of_group + first_filter(group);
  }

  DEVICE float4 residual(int row, int group) const {
    const bool inside = arrays.residual != nullptr && row < p.rows();
    const int count = inside ? p.group_filters() - first_filter(group) : 0;
    return load_filters(arrays.residual + place(row, group), count, whole);
  }

  // Eight sums: four filters of each of two rows, whose ranks they raise.
  DEVICE void operator()(const float* sums, const Rows<C>& rows, int group,
                         const float4 (&residuals)[2], unsigned (&rank)[2]) const {
    const int count = p.group_filters() - first_filter(group);
    const unsigned* alphas =
        arrays.a + (size_t)p.columns<C>() * p.steps() * (C::kB / 4) + column * C::kFilters;
    const float4 alpha = load_constant4((const float*)alphas + 16 * group + 4 * t);
    float4 bias = make_float4(0.f, 0.f, 0.f, 0.f);
    if (arrays.bias != nullptr) bias = load_filters(arrays.bias + place(0, group), count, whole);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float undo = unscale_of(rows.peak[h]), below = undo < 1.f ? undo : 1.f;
      const float above = undo < 1.f ? 1.f : undo;
      const float4 r = residuals[h];
      const float* u = sums + 2 * h;
      float4 v;
      v.x = finished<Activation>(corrected<C>(u[0]), below, alpha.x, above, bias.x, r.x);
      v.y = finished<Activation>(corrected<C>(u[1]), below, alpha.y, above, bias.y, r.y);
      v.z = finished<Activation>(corrected<C>(u[4]), below, alpha.z, above, bias.z, r.z);
      v.w = finished<Activation>(corrected<C>(u[5]), below, alpha.w, above, bias.w, r.w);
      if (rows.row[h] < p.rows()) {
        store_filters(arrays.y + place(rows.row[h], group), v, count, whole);
        if (arrays.peaks_out != nullptr) rank[h] = max(rank[h], rank_of_four(v, count));
      }
    }
  }

  static DEVICE unsigned rank_of_four(float4 v, int count) {
    unsigned rank = 0;
    if (count > 0) rank = rank_of(as_bits(v.x));
    if (count > 1) rank = max(rank, rank_of(as_bits(v.y)));
    if (count > 2) rank = max(rank, rank_of(as_bits(v.z)));
    if (count > 3) rank = max(rank, rank_of(as_bits(v.w)));
    return rank;
  }

  // max|y| of the images of a thread's two rows; by all lanes of a warp.
  DEVICE void note_peaks(const Rows<C>& rows, const unsigned (&rank)[2]) const {
    if (arrays.peaks_out == nullptr) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int image = p.image_of(rows.row[h]);
      const unsigned lanes = lanes_alike(image), most = max_of_lanes(lanes, rank[h]);
      if (thread_index() % 32 == first_lane(lanes)) {
        if (const unsigned magnitude = magnitude_of(most))
          global_max(arrays.peaks_out + image, magnitude);
      }
    }
  }
};

// Eight sums of a group of filters in `parts`: two vectors, threads next to each other.
template <class C> DEVICE float* part_at(float* parts, int slot, int group, int thread) {
  const size_t first = (size_t)slot * C::kRows * C::kFilters;
  return parts + first + group * (2 * 4 * C::kThreads) + thread * 4;
}

// ---- The consumers ----

DEVICE void split(float v, float w, float scale, unsigned& high, unsigned& low) {
  high = to_half2(v * scale, w * scale);
  const float2 rounded = from_half2(high);
  low = to_half2(multiply_add(v, scale, -rounded.x), multiply_add(w, scale, -rounded.y));
}

// B in shared memory: rows of 128 bytes, swizzled, 1024 bytes every 8 rows; + 2 is 16 products on.
DEVICE unsigned long long described(unsigned at) {
  return (unsigned long long)((at & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

template <class C> struct Consumer {
  static constexpr int kLow = 4;  // registers of a fragment, high then low
  const unsigned base;
  const int warpgroup, lane;
  Ring<C> ring;
  int previous = 0;                           // stage
  // This thread's rows: of A the first's place, the other is 8 rows on; of a patch both, tap 0
  unsigned at[2];
  int tap = 0, shift = 0, slot = 0, slot_phase = 0;  // shift: rows of the patch, slot: which one
  float scale[2];
  unsigned fragments[2][2][8];                // of two steps, two times 16 products
  float sums[C::kSums];                       // in the tensor core
  float total[C::kSums];

  DEVICE Consumer(const Conv& p, unsigned shared)
      : base(shared), warpgroup(thread_index() / kWarpgroup - 1), lane(thread_index() % 32) {
    const int first = warpgroup * 64 + thread_index() / 32 % 4 * 16 + lane / 8 + lane / 4 % 2 * 4;
    at[0] = swizzled(first, lane % 4);
    if constexpr (C::kPatch > 0)
      for (int h = 0; h < 2; ++h) {
        const int row = first + 8 * h, n = row / (p.box_w * p.box_h);
        const int of_image = row / p.box_w % p.box_h * p.patch_w() + row % p.box_w;
        at[h] = n < p.box_n ? n * p.patch_w() * p.patch_h() + of_image : 0;
      }
  }

  // Where this thread's rows of a step are in shared memory.
  DEVICE void places(unsigned (&place)[2]) const {
    if constexpr (C::kPatch > 0) {
      const unsigned patch = patch_at<C>(base, slot);
      place[0] = patch + swizzled(at[0] + shift, lane % 4);
      place[1] = patch + swizzled(at[1] + shift, lane % 4);
    } else {
      place[0] = stage_at<C>(base, ring.stage) + at[0], place[1] = place[0] + 8 * kRowBytes;
    }
  }

  template <int kSlot> DEVICE void fetch() {
    unsigned place[2];
    places(place);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float4 u = load_shared(place[0] ^ (64 * k)), v = load_shared(place[1] ^ (64 * k));
      unsigned* f = fragments[kSlot][k];
      split(u.x, u.y, scale[0], f[0], f[kLow]);
      split(v.x, v.y, scale[1], f[1], f[kLow + 1]);
      split(u.z, u.w, scale[0], f[2], f[kLow + 2]);
      split(v.z, v.w, scale[1], f[3], f[kLow + 3]);
    }
  }

  // A step's fragments from the patch, which is left with the last tap, or the tile's last step.
  template <int kSlot> DEVICE void fetch_from_patch(const Conv& p, bool first, bool last) {
    if (first || tap == 0) wait(patch_full<C>(base, slot), slot_phase);
    shift = tap / p.taps_w * p.dilation_h * p.patch_w() + tap % p.taps_w * p.dilation_w;
    fetch<kSlot>();
    if (++tap == p.taps() || last) {
      tap = 0;
      leave(patch_empty<C>(base, slot));
      slot_phase ^= slot, slot ^= 1;
    }
    wait(full<C>(base, ring.stage), ring.phase);
  }

  // low * high, high * low, high * high: small terms first.
  template <int kSlot> DEVICE void multiply(bool fresh) {
    const unsigned long long b = described(stage_at<C>(base, ring.stage) + C::kA);
    wgmma_fence();
#pragma unroll
    for (int product = 0; product < 3; ++product)
#pragma unroll
      for (int k = 0; k < 2; ++k)
        wgmma<C::kSums>(sums, fragments[kSlot][k] + (product == 0 ? kLow : 0),
                        b + 2 * k + (product == 1 ? 4 : 0),
                        product == 0 && k == 0 && fresh ? 0 : 1);
    wgmma_commit();
  }

  DEVICE void leave(unsigned barrier) const {
    warp_barrier();  // behind the loads of all lanes
    if (EVERY_LANE_ARRIVES || lane == 0) arrive(barrier);
  }

  DEVICE void release() {
    leave(empty<C>(base, previous));
  }

  DEVICE void promote() {
    wgmma_wait<0>();
    release();
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) total[j] += sums[j];
  }

  // The fragments of a step are made while the tensor cores are at the step before. `step` counts
  // from 0 in the tile.
  template <int kParity> DEVICE void step(const Conv& p, int step, int steps) {
    const bool fresh = C::kPromote == 1 || kParity == 0;
    const int next = warpgroup + 1 == C::kWarpgroups ? 0 : warpgroup + 1;
    if constexpr (C::kPatch > 0) {
      fetch_from_patch<kParity>(p, step == 0, step + 1 == steps);
    } else {
      wait(full<C>(base, ring.stage), ring.phase);
      fetch<kParity>();
    }
    if (fresh && step > 0) promote();
    if (C::kOrdered) named_barrier(kConsumers + warpgroup, 2 * kWarpgroup);
    multiply<kParity>(fresh);
    if (C::kOrdered) named_arrive(kConsumers + next, 2 * kWarpgroup);
    if (!fresh) {
      wgmma_wait<1>();
      release();
    }
    previous = ring.stage;
    ring.advance();
  }

  // Steps of a tile to `total`.
  DEVICE void sum(const Conv& p, const unsigned* peaks, int tile, int begin, int end) {
    const Rows<C> rows(p, peaks, tile, thread_index() - kWarpgroup);
    scale[0] = scale_of(rows.peak[0]), scale[1] = scale_of(rows.peak[1]);
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) total[j] = 0.f;
    const int steps = end - begin;
    if (C::kPatch) tap = begin % p.taps();
    int done = 0;
    for (; done + 1 < steps; done += 2) step<0>(p, done, steps), step<1>(p, done + 1, steps);
    if (done < steps) step<0>(p, done, steps);
    promote();
  }

  // `total` to y. The residuals of four groups of filters are under way at once.
  template <class Activation> DEVICE void store(const Store<C, Activation>& store, int tile) const {
    constexpr int kAhead = 4;
    // Found again: while the tensor cores work, registers are short.
    const Rows<C> rows(store.p, store.arrays.peaks, tile, thread_index() - kWarpgroup);
    unsigned rank[2] = {0, 0};
#pragma unroll
    for (int first = 0; first < C::kGroups; first += kAhead) {
      float4 residuals[kAhead][2];
#pragma unroll
      for (int j = 0; j < 2 * kAhead; ++j)
        residuals[j / 2][j % 2] = store.residual(rows.row[j % 2], first + j / 2);
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        store(total + 8 * (first + j), rows, first + j, residuals[j], rank);
    }
    store.note_peaks(rows, rank);
  }

  DEVICE void store_part(float* parts, int slot) const {
#pragma unroll
    for (int j = 0; j < C::kGroups; ++j) {
      const float* v = total + 8 * j;
      float* to = part_at<C>(parts, slot, j, thread_index() - kWarpgroup);
      store_global4(to, make_float4(v[0], v[1], v[2], v[3]));
      store_global4(to + 4 * C::kThreads, make_float4(v[4], v[5], v[6], v[7]));
    }
  }
};

template <class C, class Activation>
DEVICE void consume(const Conv& p, const Arrays& arrays, unsigned base) {
  Consumer<C> consumer(p, base);
  const bool last = consumer.warpgroup + 1 == C::kWarpgroups;
  if (C::kOrdered && last) named_arrive(kConsumers, 2 * kWarpgroup);  // the first one's turn
  for (Work<C> work(p); work.next();) {
    consumer.sum(p, arrays.peaks, work.tile, work.first, work.last);
    if (work.whole()) consumer.store(Store<C, Activation>(p, arrays, work.tile), work.tile);
    else consumer.store_part(arrays.parts, work.slot);
  }
  // Takes the last consumer's last arrival.
  if (C::kOrdered && consumer.warpgroup == 0) named_barrier(kConsumers, 2 * kWarpgroup);
}

// ---- The kernels ----

template <class C>
DEVICE unsigned prepare(void* shared) {
  const unsigned base = (shared_address(shared) + 1023) & ~1023u;
  if (thread_index() == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      // the producers' copies, if A is in the stage, and B's bytes
      barrier_init(full<C>(base, i), C::kPatch ? 1 : kWarpgroup + 1);
      barrier_init(empty<C>(base, i), C::kArrivals);
    }
    for (int i = 0; C::kPatch && i < 2; ++i) {
      barrier_init(patch_full<C>(base, i), kPatchCopiers);
      barrier_init(patch_empty<C>(base, i), C::kArrivals);
    }
    barriers_ready();
  }
  block_barrier();
  return base;
}

// Tiles of a convolution. Arguments: Arrays, shared memory, Conv field by field.
template <class C, class Activation, class... Sizes>
DEVICE void convolve(const float* x, const unsigned* a, const float* bias, const float* residual,
                     const unsigned* peaks, float* parts, float* y, unsigned* peaks_out,
                     void* shared, Sizes... sizes) {
  const Conv conv{sizes...};
  const Arrays arrays{x, a, bias, residual, peaks, parts, y, peaks_out};
  const unsigned base = prepare<C>(shared);
  if (thread_index() < kWarpgroup) {
    registers_down<56>();
    if constexpr (C::kPatch == 0) produce<C>(conv, arrays, base);
    else if (thread_index() < kPatchCopiers) produce_patches<C>(conv, arrays, base);
    else if (thread_index() == kPatchCopiers) produce_weights<C>(conv, a, base);
  } else {
    // What is left of 3 * 168 or 4 * 128, which the launch bounds leave the warpgroups
    registers_up<C::kWarpgroups == 2 ? 224 : 152>();
    consume<C, Activation>(conv, arrays, base);
  }
}

// Tiles whose steps several blocks shared: their parts in the order of the steps, to y. A block
// sums a group of filters of a tile; its threads are arranged as the consumers were.
template <class C, class Activation, class... Sizes>
DEVICE void sum_shares(const unsigned* a, const float* bias, const float* residual,
                       const unsigned* peaks, const float* parts, float* y, unsigned* peaks_out,
                       Sizes... sizes) {
  const Conv p{sizes...};
  const Arrays arrays{nullptr, a, bias, residual, peaks, nullptr, y, peaks_out};
  const int steps = p.steps(), total = (p.tiles<C>() - p.whole) * steps;
  const int shared_tile = block_index() / C::kGroups, group = block_index() % C::kGroups;
  const int first = shared_tile * steps, last = first + steps;
  int share = first * p.shares / total;
  while (p.share_begin(share + 1, total) <= first) ++share;
  if (p.share_begin(share + 1, total) >= last) return;  // of one block, which stored it
  float sums[8] = {};
  constexpr int kAhead = 8;  // parts under way at once
  for (; p.share_begin(share, total) < last; share += kAhead) {
    float4 part[kAhead][2] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int begin = p.share_begin(share + i, total);
      if (begin >= last) continue;
      const int slot = 2 * (share + i) + (begin >= first ? 0 : 1);
      const float* from = part_at<C>((float*)parts, slot, group, thread_index());
      part[i][0] = load_constant4(from), part[i][1] = load_constant4(from + 4 * C::kThreads);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float4 u = part[i][0], v = part[i][1];
      sums[0] += u.x, sums[1] += u.y, sums[2] += u.z, sums[3] += u.w;
      sums[4] += v.x, sums[5] += v.y, sums[6] += v.z, sums[7] += v.w;
    }
  }
  const int tile = p.whole + shared_tile;
  const Rows<C> rows(p, peaks, tile, thread_index());
  const Store<C, Activation> store(p, arrays, tile);
  const float4 residuals[2] = {store.residual(rows.row[0], group),
                               store.residual(rows.row[1], group)};
  unsigned rank[2] = {0, 0};
  store(sums, rows, group, residuals, rank);
  store.note_peaks(rows, rank);
}

// ---- Weights ----

// Of the numbers 4 t + 2 b + e within 16, position 8 b + 2 t + e; and the other way round.
DEVICE int position_of(int number) { return number / 2 % 2 * 8 + number / 4 * 2 + number % 2; }
DEVICE int number_at(int position) {
  return position % 8 / 2 * 4 + position / 8 * 2 + position % 2;
}

// (k, c, r, s) float32 to what pack.py says; a block of 256 threads a filter of a tile. `channels`
// are those of a group in w, which Conv pads.
template <class C, class... Sizes>
DEVICE void pack_weights(const float* w, unsigned* a, unsigned* warps, int channels,
                         Sizes... sizes) {
  const Conv p{sizes...};
  const int column = block_index() / C::kFilters, local = block_index() % C::kFilters;
  const int filter = column % p.filter_tiles<C>() * C::kFilters + local;
  const int taps = p.taps_h * p.taps_w;
  const int products = filter < p.group_filters() ? taps * channels : 0;
  const float* row =
      w + ((size_t)(column / p.filter_tiles<C>()) * p.group_filters() + filter) * taps * channels;
  unsigned rank = 0;
  for (int i = thread_index(); i < products; i += 256)
    rank = max(rank, rank_of(as_bits(load_constant(row + i))));
  const unsigned peak = magnitude_of(block_max(rank, warps));
  const int position = local / 16 * 16 + position_of(local % 16);
  unsigned* block = a + (size_t)column * p.steps() * (C::kB / 4) + position * (kRowBytes / 4);
  for (int i = thread_index(); i < p.steps() * kStep / 2; i += 256) {
    const int pair = i % 16, first = i / 16 * kStep + pair / 8 * 16 + number_at(2 * pair % 16);
    const auto value = [&](int q) {
      const int run = p.run(), tap = q / run % taps, c = q / run / taps * run + q % run;
      return products > 0 && c < channels ? load_constant(row + c * taps + tap) : 0.f;
    };
    unsigned high, low;
    split(value(first), value(first + 1), scale_of(peak), high, low);
    unsigned* step = block + (size_t)(i / 16) * (C::kB / 4);
    store_global(step + swizzled(position, pair / 4) % kRowBytes / 4 + pair % 4, high);
    store_global(step + swizzled(position, 4 + pair / 4) % kRowBytes / 4 + pair % 4, low);
  }
  unsigned* alphas = a + (size_t)p.columns<C>() * p.steps() * (C::kB / 4);
  if (thread_index() == 0) store_global(alphas + block_index(), as_bits(unscale_of(peak)));
}

}  // namespace tensor_core
