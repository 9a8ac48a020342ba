// Products of a dense X in rows with K vectors, in one read of X; sums in double precision, in a fixed order.
//
// MODE 0: scores z = X w + shift, the loss of each row, and its gradient X' g
//      1: scores z = X w + shift          2: X' h          3: X' (h * (X w))
// STORAGE 0: float   1: double   2: bfloat16   3: half
// L threads share a row (a part of a warp, or the whole block) and load vectors of EPV entries; each group
// takes RR rows at a time, and if STAGED the next ones are copied ahead to shared memory. PC columns, K vectors
// w, TPB threads per block; BYTES in a vector.
#if STORAGE == 0
typedef float T;
#define UP(x) ((double)(x))
#elif STORAGE == 1
typedef double T;
#define UP(x) (x)
#elif STORAGE == 2
typedef unsigned short T;
#define UP(x) ((double)__uint_as_float(((unsigned)(x)) << 16))
#else
typedef unsigned short T;
__device__ __forceinline__ double half_to_double(unsigned short x)
{
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return (double)f;
}
#define UP(x) half_to_double(x)
#endif

#if STORAGE == 0
#define KEEP_STORED(x) asm volatile("" : "+f"(x))
#elif STORAGE == 1
#define KEEP_STORED(x) asm volatile("" : "+d"(x))
#else
#define KEEP_STORED(x) asm volatile("" : "+h"(x))
#endif

struct alignas(sizeof(T) * EPV) Vector { T a[EPV]; };

#define NV ((PC + L * EPV - 1) / (L * EPV))   // vectors of a thread
#define PADDED (NV * L * EPV)
#define WARPS (TPB / 32)
#define LANES (L > 32 ? 32 : L)
#define N (RR * K)                            // scores of a group at a time: a power of two, at most LANES
#define EACH (LANES / N)                      // lanes that end with the same score
#define SUMS 4                                // value, slope in the shift, offset, sum of |slopes|
#if L > 32
#define GROUPS 1                              // rows side by side in a warp
#define UNITS 1                               // warps, or blocks, that take rows on their own
#else
#define GROUPS (32 / L)
#define UNITS WARPS
#endif
#define WANTS_SCORES (MODE != 2)
#define WANTS_GRADIENT (MODE != 1)

// Copy a vector of the next rows to shared memory without waiting; zeros where there is none.
__device__ __forceinline__ void load_ahead(Vector* target, const Vector* source, bool there)
{
  const unsigned address = (unsigned)__cvta_generic_to_shared(target);
  const int size = there ? (int)sizeof(Vector) : 0;
#if BYTES == 16
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(source), "r"(size) : "memory");
#elif BYTES == 8
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(address), "l"(source), "r"(size) : "memory");
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(address), "l"(source), "r"(size) : "memory");
#endif
}

#define FOR_ROWS_OF(first) \
  _Pragma("unroll") for (int r = 0; r < RR; r++) \
    _Pragma("unroll") for (int v = 0; v < NV; v++) \
      if ([[maybe_unused]] const long long row = (first) + r * GROUPS + group, col = (long long)(v * L + sub) * EPV; true)

#define HALVE(half) \
  if (half < N) { \
    const int apart = LANES * half / N; \
    const bool upper = chooser & apart; \
    _Pragma("unroll") for (int i = 0; i < (half < N ? half : 0); i++) { \
      const double keep = upper ? s[i + half] : s[i], send = upper ? s[i] : s[i + half]; \
      s[i] = keep + __shfl_xor_sync(~0u, send, apart); \
    } \
  }

// part: per block K x (PC + SUMS) numbers, the gradients and then the sums
extern "C" __global__ void __launch_bounds__(TPB) dense_rows(
    const T* __restrict__ X, long long ld, const double* __restrict__ W, double shift,
    const LABEL* __restrict__ y, const double* __restrict__ c, double c0, const double* __restrict__ k,
    const double* __restrict__ h, double* __restrict__ z, double* __restrict__ part, long long n)
{
  extern __shared__ double shared_w[];        // K x PADDED
  Vector* stage = (Vector*)(shared_w + (K * PADDED + 1) / 2 * 2);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#if L > 32
  const int sub = threadIdx.x, group = 0, unit = 0, chooser = lane;
  __shared__ double across[2][N][WARPS];
  int parity = 0;
#else
  const int sub = lane % L, group = lane / L, unit = warp, chooser = sub;
#endif
  if (WANTS_SCORES) {
    for (int i = threadIdx.x; i < K * PADDED; i += TPB)
      shared_w[i] = i % PADDED < PC ? W[(long long)(i / PADDED) * PC + i % PADDED] : 0.0;
    __syncthreads();
  }
  double grad[K][NV * EPV];
  #pragma unroll
  for (int q = 0; q < K; q++)
    #pragma unroll
    for (int i = 0; i < NV * EPV; i++) grad[q][i] = 0.0;
  double sums[SUMS] = {0.0, 0.0, 0.0, 0.0};
  const long long step = (long long)gridDim.x * UNITS * RR * GROUPS;
  const long long begin = ((long long)blockIdx.x * UNITS + unit) * RR * GROUPS;
  // the lanes (EACH * i) evaluate the loss of score i = r K + q: row r, vector q
  const int chosen_i = chooser / EACH, chosen_r = chosen_i / K, chosen_k = chosen_i % K;
  const bool evaluates = chooser % EACH == 0 && (L <= 32 || warp == 0);
#if STAGED
  FOR_ROWS_OF(begin) load_ahead(stage + (r * NV + v) * TPB + threadIdx.x,
                                (const Vector*)(X + (row < n && col < PC ? row * ld + col : 0)), row < n && col < PC);
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  for (long long first = begin; first < n; first += step) {
    Vector x[RR][NV];
#if STAGED
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    FOR_ROWS_OF(first) x[r][v] = stage[(r * NV + v) * TPB + threadIdx.x];
    if (first + step < n)
      FOR_ROWS_OF(first + step) load_ahead(stage + (r * NV + v) * TPB + threadIdx.x,
                                           (const Vector*)(X + (row < n && col < PC ? row * ld + col : 0)), row < n && col < PC);
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    FOR_ROWS_OF(first) {
      if (row < n && ((v + 1) * L * EPV <= PC || col < PC)) x[r][v] = *(const Vector*)(X + row * ld + col);
      else {
        #pragma unroll
        for (int i = 0; i < EPV; i++) x[r][v].a[i] = 0;
      }
    }
#endif
    const long long chosen = first + chosen_r * GROUPS + group;
    const bool mine = chosen < n;
    double g = 0.0;
    if (WANTS_SCORES) {
#if MODE == 0
      const double label = mine ? (double)y[chosen] : 0.0;
      const double weight = mine ? (WEIGHTED ? c[chosen] : c0) : 0.0;
#elif MODE == 3
      const double factor = mine ? h[chosen] : 0.0;
#endif
      double s[N];
      #pragma unroll
      for (int i = 0; i < N; i++) s[i] = 0.0;
      #pragma unroll
      for (int v = 0; v < NV; v++)
        #pragma unroll
        for (int i = 0; i < EPV; i++)
          #pragma unroll
          for (int q = 0; q < K; q++) {
            const double wi = shared_w[q * PADDED + (v * L + sub) * EPV + i];
            #pragma unroll
            for (int r = 0; r < RR; r++) s[r * K + q] = fma(UP(x[r][v].a[i]), wi, s[r * K + q]);
          }
      // each step halves the scores of a lane and doubles the lanes that they are sums of
      HALVE(16) HALVE(8) HALVE(4) HALVE(2) HALVE(1)
      double own = s[0];
      #pragma unroll
      for (int o = EACH / 2; o; o /= 2) own += __shfl_xor_sync(~0u, own, o);
#if L > 32
      if (chooser % EACH == 0) across[parity][chosen_i][warp] = own;
      __syncthreads();
      own = 0.0;
      #pragma unroll
      for (int j = 0; j < WARPS; j++) own += across[parity][chosen_i][j];
      parity ^= 1;                            // the next rows use the other buffer: one barrier suffices
#endif
      own += shift;
#if MODE == 0
      double value, slope, offset_sum, curvature;
      row_loss(own, label, weight, k, value, slope, offset_sum, curvature);
      g = mine ? slope : 0.0;
      if (mine && evaluates) {
        sums[0] += value; sums[1] += slope; sums[2] += offset_sum; sums[3] += fabs(slope);
      }
#elif MODE == 3
      g = factor * own;
#endif
      if (STORE && mine && evaluates) z[(long long)chosen_k * n + chosen] = own;
    } else {
      g = mine ? h[(long long)chosen_k * n + chosen] : 0.0;
    }
#if RECONVERT
    // converted a second time: as doubles, the entries would take twice as many registers
    FOR_ROWS_OF(first)
      #pragma unroll
      for (int i = 0; i < EPV; i++) KEEP_STORED(x[r][v].a[i]);
#endif
    if (WANTS_GRADIENT) {
      #pragma unroll
      for (int r = 0; r < RR; r++)
        #pragma unroll
        for (int q = 0; q < K; q++) {
          const double gr = __shfl_sync(~0u, g, (L > 32 ? 0 : group * L) + (r * K + q) * EACH);
          #pragma unroll
          for (int v = 0; v < NV; v++)
            #pragma unroll
            for (int i = 0; i < EPV; i++) grad[q][v * EPV + i] = fma(gr, UP(x[r][v].a[i]), grad[q][v * EPV + i]);
        }
    }
  }
  if (!WANTS_GRADIENT) return;
  double* mine_part = part + (long long)blockIdx.x * K * (PC + SUMS);
#if L > 32
  #pragma unroll
  for (int q = 0; q < K; q++)
    #pragma unroll
    for (int v = 0; v < NV; v++)
      #pragma unroll
      for (int i = 0; i < EPV; i++) {
        const int col = (v * L + sub) * EPV + i;
        if (col < PC) mine_part[q * (PC + SUMS) + col] = grad[q][v * EPV + i];
      }
#else
  #pragma unroll
  for (int q = 0; q < K; q++)
    #pragma unroll
    for (int i = 0; i < NV * EPV; i++)
      #pragma unroll
      for (int o = 16; o >= L; o >>= 1) grad[q][i] += __shfl_xor_sync(~0u, grad[q][i], o);
  __syncthreads();
  for (int i = threadIdx.x; i < K * PADDED; i += TPB) shared_w[i] = 0.0;
  __syncthreads();
  for (int j = 0; j < WARPS; j++) {           // warp after warp: the order of the sums is fixed
    if (warp == j && lane < L) {
      #pragma unroll
      for (int q = 0; q < K; q++)
        #pragma unroll
        for (int v = 0; v < NV; v++)
          #pragma unroll
          for (int i = 0; i < EPV; i++) shared_w[q * PADDED + (v * L + sub) * EPV + i] += grad[q][v * EPV + i];
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < K * PC; i += TPB)
    mine_part[i / PC * (PC + SUMS) + i % PC] = shared_w[i / PC * PADDED + i % PC];
#endif
#if MODE == 0
  __shared__ double totals[WARPS][SUMS * K];
  #pragma unroll
  for (int j = 0; j < SUMS; j++)
    for (int q = 0; q < K; q++) {
      double total = chosen_k == q ? sums[j] : 0.0;
      #pragma unroll
      for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
      if (lane == 0) totals[warp][q * SUMS + j] = total;
    }
  __syncthreads();
  if (threadIdx.x < SUMS * K) {
    double total = 0.0;
    for (int j = 0; j < WARPS; j++) total += totals[j][threadIdx.x];
    mine_part[threadIdx.x / SUMS * (PC + SUMS) + PC + threadIdx.x % SUMS] = total;
  }
#endif
}
