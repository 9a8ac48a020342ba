// Products of a sparse X whose columns are ordered by frequency, in blocks of HC columns.
//
// The first block is "hot": rows of groups of four entries. Others are "tail": groups of four entries (row,
// column) sorted by row within their block of columns. A block of w, or of the gradient, is in shared memory.
// Sums over rows of X w are doubles in a fixed order; sums that several threads add to are 64-bit integers in
// fixed point, whose result does not depend on the order.
typedef unsigned long long u64;
struct Values { VALUE a[4]; };
struct Rows4 { int a[4]; };

__device__ __forceinline__ Values load_values(const VALUE* p)
{
  Values v;
#if WIDE
  const double2 low = __ldcs((const double2*)p), high = __ldcs((const double2*)p + 1);
  v.a[0] = low.x; v.a[1] = low.y; v.a[2] = high.x; v.a[3] = high.y;
#else
  const float4 four = __ldcs((const float4*)p);
  v.a[0] = four.x; v.a[1] = four.y; v.a[2] = four.z; v.a[3] = four.w;
#endif
  return v;
}
__device__ __forceinline__ uint2 load_columns(const unsigned short* p) { return __ldcs((const uint2*)p); }
__device__ __forceinline__ Rows4 load_rows(const int* p)
{
  const int4 four = __ldcs((const int4*)p);
  return Rows4{{four.x, four.y, four.z, four.w}};
}
#define COLUMN(c, i) (((i) < 2 ? (c).x : (c).y) >> (((i) & 1) * 16) & 0xffffu)
#define GROUPS (32 / LANES)                   // rows side by side in a warp

// Add to a 64-bit integer in shared memory by two native additions of 32 bits: the low words return their carry.
__device__ __forceinline__ void add_shared(unsigned* low, unsigned* high, int c, double term)
{
  const u64 bits = (u64)__double2ll_rn(term);
  const unsigned lo = (unsigned)bits, before = atomicAdd(low + c, lo);
  const unsigned hi = (unsigned)(bits >> 32) + (before + lo < before ? 1u : 0u);
  if (hi) atomicAdd(high + c, hi);
}

#define LOAD_ROW(i) { \
  const int q_ = (i) * GROUPS + group; next_b = __shfl_sync(~0u, pb, q_); next_e = __shfl_sync(~0u, pe, q_); \
  _Pragma("unroll") for (int q = 0; q < UNROLL; q++) { \
    const long long j = next_b + sub + q * LANES; \
    if (j < next_e) { cn[q] = load_columns(columns + 4 * j); vn[q] = load_values(values + 4 * j); } \
    else { cn[q] = make_uint2(0, 0); vn[q] = Values{{0, 0, 0, 0}}; } } }

// z = X w of the hot columns. A warp takes 32 rows and requests the next ones before it uses the present ones.
extern "C" __global__ void __launch_bounds__(TPB, 1) hot_scores(
    const long long* __restrict__ ends, const unsigned short* __restrict__ columns,
    const VALUE* __restrict__ values, const double* __restrict__ w, int width, double* __restrict__ z, int n)
{
  extern __shared__ double shared[];
  for (int i = threadIdx.x; i < width; i += TPB) shared[i] = w[i];
  __syncthreads();
  const int lane = threadIdx.x % 32, sub = lane % LANES, group = lane / LANES;
  const long long step = (long long)gridDim.x * TPB;
  long long base = ((long long)blockIdx.x * TPB + threadIdx.x) / 32 * 32;
  if (base >= n) return;
  long long pb = ends[min((long long)n, base + lane)], pe = ends[min((long long)n, base + lane + 1)], next_b, next_e;
  uint2 cn[UNROLL]; Values vn[UNROLL];
  LOAD_ROW(0)
  while (base < n) {
    const long long next = base + step;
    long long pb2 = 0, pe2 = 0;
    if (next < n) { pb2 = ends[min((long long)n, next + lane)]; pe2 = ends[min((long long)n, next + lane + 1)]; }
    double mine = 0.0;
    #pragma unroll 2
    for (int i = 0; i < LANES; i++) {
      uint2 c[UNROLL]; Values v[UNROLL];
      const long long b = next_b, e = next_e;
      #pragma unroll
      for (int q = 0; q < UNROLL; q++) { c[q] = cn[q]; v[q] = vn[q]; }
      if (i < LANES - 1) LOAD_ROW(i + 1)
      else { pb = pb2; pe = pe2; LOAD_ROW(0) }
      double s = 0.0;
      #pragma unroll
      for (int q = 0; q < UNROLL; q++)
        #pragma unroll
        for (int t = 0; t < 4; t++) s = fma((double)v[q].a[t], shared[COLUMN(c[q], t)], s);
      for (long long j = b + sub + UNROLL * LANES; j < e; j += LANES) {
        const uint2 cc = load_columns(columns + 4 * j); const Values vv = load_values(values + 4 * j);
        #pragma unroll
        for (int t = 0; t < 4; t++) s = fma((double)vv.a[t], shared[COLUMN(cc, t)], s);
      }
      #pragma unroll
      for (int o = LANES / 2; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
      #pragma unroll
      for (int q = 0; q < GROUPS; q++) { const double t = __shfl_sync(~0u, s, q * LANES); if (lane == i * GROUPS + q) mine = t; }
    }
    if (base + lane < n) z[base + lane] = mine;
    base = next;
  }
}

// sums += X' g of the hot columns, in fixed point: scale[0] per unit.
extern "C" __global__ void __launch_bounds__(TPB, 1) hot_pullback(
    const long long* __restrict__ ends, const unsigned short* __restrict__ columns,
    const VALUE* __restrict__ values, const double* __restrict__ g, const double* __restrict__ scales,
    int width, u64* __restrict__ sums, int n)
{
  extern __shared__ double shared[];
  unsigned *low = (unsigned*)shared, *high = low + HC;
  for (int i = threadIdx.x; i < 2 * HC; i += TPB) low[i] = 0u;
  __syncthreads();
  const double scale = scales[0];
  const int lane = threadIdx.x % 32, sub = lane % LANES, group = lane / LANES;
  const long long step = (long long)gridDim.x * TPB;
  long long base = ((long long)blockIdx.x * TPB + threadIdx.x) / 32 * 32;
  if (base < n) {
    long long pb = ends[min((long long)n, base + lane)], pe = ends[min((long long)n, base + lane + 1)], next_b, next_e;
    uint2 cn[UNROLL]; Values vn[UNROLL];
    double own = base + lane < n ? g[base + lane] * scale : 0.0;
    LOAD_ROW(0)
    while (base < n) {
      const long long next = base + step;
      long long pb2 = 0, pe2 = 0; double own2 = 0.0;
      if (next < n) {
        pb2 = ends[min((long long)n, next + lane)]; pe2 = ends[min((long long)n, next + lane + 1)];
        if (next + lane < n) own2 = g[next + lane] * scale;
      }
      #pragma unroll 2
      for (int i = 0; i < LANES; i++) {
        uint2 c[UNROLL]; Values v[UNROLL];
        const long long b = next_b, e = next_e;
        #pragma unroll
        for (int q = 0; q < UNROLL; q++) { c[q] = cn[q]; v[q] = vn[q]; }
        const double a = __shfl_sync(~0u, own, i * GROUPS + group);
        if (i < LANES - 1) LOAD_ROW(i + 1)
        else { pb = pb2; pe = pe2; LOAD_ROW(0) }
        if (a != 0.0) {
          #pragma unroll
          for (int q = 0; q < UNROLL; q++)
            #pragma unroll
            for (int t = 0; t < 4; t++) if (v[q].a[t] != 0) add_shared(low, high, COLUMN(c[q], t), a * (double)v[q].a[t]);
          for (long long j = b + sub + UNROLL * LANES; j < e; j += LANES) {
            const uint2 cc = load_columns(columns + 4 * j); const Values vv = load_values(values + 4 * j);
            #pragma unroll
            for (int t = 0; t < 4; t++) if (vv.a[t] != 0) add_shared(low, high, COLUMN(cc, t), a * (double)vv.a[t]);
          }
        }
      }
      own = own2; base = next;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += TPB) {
    const u64 sum = ((u64)high[i] << 32) + low[i];
    if (sum) atomicAdd(sums + i, sum);
  }
}

#define LOAD_TAIL(j) { _Pragma("unroll") for (int q = 0; q < UNROLL; q++) { \
  const long long k_ = (j) + (long long)q * TPB; \
  if (k_ < hi) { rn[q] = load_rows(rows + 4 * k_); cn[q] = load_columns(columns + 4 * k_); vn[q] = load_values(values + 4 * k_); } \
  else { rn[q] = Rows4{{-1, -1, -1, -1}}; cn[q] = make_uint2(0, 0); vn[q] = Values{{0, 0, 0, 0}}; } } }

// sums += X w of the tail, in fixed point: scale[0] per unit. ends: of the blocks, in groups of four.
extern "C" __global__ void __launch_bounds__(TPB, 1) tail_scores(
    const long long* __restrict__ ends, int blocks, const int* __restrict__ rows,
    const unsigned short* __restrict__ columns, const VALUE* __restrict__ values, const double* __restrict__ w,
    const double* __restrict__ scales, u64* __restrict__ sums, int p)
{
  extern __shared__ double shared[];
  const double scale = scales[0];
  const long long total = ends[blocks], begin = total * blockIdx.x / gridDim.x, end = total * (blockIdx.x + 1) / gridDim.x;
  for (int b = 0; b < blocks; b++) {
    const long long lo = max(begin, ends[b]), hi = min(end, ends[b + 1]);
    if (lo >= hi) continue;
    __syncthreads();
    const int first = HC * (b + 1), width = min(HC, p - first);
    for (int i = threadIdx.x; i < width; i += TPB) shared[i] = w[first + i];
    __syncthreads();
    Rows4 rn[UNROLL]; uint2 cn[UNROLL]; Values vn[UNROLL];
    LOAD_TAIL(lo + threadIdx.x)
    for (long long j = lo; j < hi; j += UNROLL * TPB) {
      Rows4 r[UNROLL]; uint2 c[UNROLL]; Values v[UNROLL];
      #pragma unroll
      for (int q = 0; q < UNROLL; q++) { r[q] = rn[q]; c[q] = cn[q]; v[q] = vn[q]; }
      LOAD_TAIL(j + UNROLL * TPB + threadIdx.x)
      #pragma unroll
      for (int q = 0; q < UNROLL; q++) {
        int row = r[q].a[0]; double x = (double)v[q].a[0] * shared[COLUMN(c[q], 0)];
        #pragma unroll
        for (int t = 1; t < 4; t++) {
          const double xt = (double)v[q].a[t] * shared[COLUMN(c[q], t)];
          if (r[q].a[t] == row) x += xt;
          else { atomicAdd(sums + row, (u64)__double2ll_rn(x * scale)); row = r[q].a[t]; x = xt; }
          if (row < 0) break;
        }
        if (row >= 0) atomicAdd(sums + row, (u64)__double2ll_rn(x * scale));
      }
    }
  }
}

// sums += X' g of the tail, in fixed point: scale[b + 1] per unit in block b.
extern "C" __global__ void __launch_bounds__(TPB, 1) tail_pullback(
    const long long* __restrict__ ends, int blocks, const int* __restrict__ rows,
    const unsigned short* __restrict__ columns, const VALUE* __restrict__ values, const double* __restrict__ g,
    const double* __restrict__ scales, u64* __restrict__ sums, int p)
{
  extern __shared__ double shared[];
  unsigned *low = (unsigned*)shared, *high = low + HC;
  const long long total = ends[blocks], begin = total * blockIdx.x / gridDim.x, end = total * (blockIdx.x + 1) / gridDim.x;
  for (int b = 0; b < blocks; b++) {
    const long long lo = max(begin, ends[b]), hi = min(end, ends[b + 1]);
    if (lo >= hi) continue;
    const double scale = scales[b + 1];
    const int first = HC * (b + 1), width = min(HC, p - first);
    for (int i = threadIdx.x; i < 2 * HC; i += TPB) low[i] = 0u;
    __syncthreads();
    Rows4 rn[UNROLL]; uint2 cn[UNROLL]; Values vn[UNROLL];
    LOAD_TAIL(lo + threadIdx.x)
    for (long long j = lo + threadIdx.x; j < hi; j += UNROLL * TPB) {
      uint2 c[UNROLL]; Values v[UNROLL]; double a[UNROLL][4];
      #pragma unroll
      for (int q = 0; q < UNROLL; q++) {
        c[q] = cn[q]; v[q] = vn[q];
        #pragma unroll
        for (int t = 0; t < 4; t++) a[q][t] = rn[q].a[t] >= 0 ? g[rn[q].a[t]] : 0.0;
      }
      LOAD_TAIL(j + UNROLL * TPB)
      #pragma unroll
      for (int q = 0; q < UNROLL; q++)
        #pragma unroll
        for (int t = 0; t < 4; t++) {
          const double term = a[q][t] * (double)v[q].a[t];
          if (term != 0.0) add_shared(low, high, COLUMN(c[q], t), term * scale);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += TPB) {
      const u64 sum = ((u64)high[i] << 32) + low[i];
      if (sum) atomicAdd(sums + first + i, sum);
    }
    __syncthreads();
  }
}
