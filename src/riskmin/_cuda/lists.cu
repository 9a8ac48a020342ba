// Losses of whole rows of scores, and of pairs of scores: softmax, and lookups among sorted scores.

// The sum of a number of every thread of the block, in a fixed order.
__device__ __forceinline__ void store_block_sum(double mine, double* part)
{
  __shared__ double sums[TPB];
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (int o = TPB / 2; o; o >>= 1) {
    if (threadIdx.x < o) sums[threadIdx.x] += sums[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) part[blockIdx.x] = sums[0];
}

#ifdef K
// c (log sum_j exp z_j - z_y) of every row of K scores, and its gradient. L threads share a row.
#define EACH ((K + L - 1) / L)
extern "C" __global__ void __launch_bounds__(TPB) softmax_rows(
    const double* __restrict__ z, const double* __restrict__ y, const double* __restrict__ c,
    double* __restrict__ dz, double* __restrict__ part, long long n)
{
  const int sub = threadIdx.x % L;
  const long long step = (long long)gridDim.x * (TPB / L);
  double value = 0.0;
  // threads of a warp stay together: rows beyond the last are computed as the last, but not stored
  for (long long base = (long long)blockIdx.x * (TPB / L); base < n; base += step) {
    const long long own = base + threadIdx.x / L, row = min(own, n - 1);
    const int label = (int)y[row];
    const double weight = c[row];
    double e[EACH], largest = -INFINITY, total = 0.0, chosen = 0.0;
    #pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int k = sub + j * L;
      e[j] = k < K ? z[row * K + k] : -INFINITY;
      largest = fmax(largest, e[j]);
    }
    #pragma unroll
    for (int o = L / 2; o; o >>= 1) largest = fmax(largest, __shfl_xor_sync(~0u, largest, o));
    #pragma unroll
    for (int j = 0; j < EACH; j++) {
      const double lead = e[j] - largest;
      if (sub + j * L == label) chosen = lead;
      e[j] = exp(lead);
      total += e[j];
    }
    #pragma unroll
    for (int o = L / 2; o; o >>= 1) {
      total += __shfl_xor_sync(~0u, total, o);
      chosen += __shfl_xor_sync(~0u, chosen, o);
    }
    if (own < n) {
      const double scale = weight / total;
      #pragma unroll
      for (int j = 0; j < EACH; j++) {
        const int k = sub + j * L;
        if (k < K) dz[row * K + k] = e[j] * scale - (k == label ? weight : 0.0);
      }
      if (sub == 0) value += weight * (log(total) - chosen);
    }
  }
  store_block_sum(value, part);
}
#endif

// ---------------------------------------------------------------- lookups among sorted numbers
// The bin of a number: subtraction, multiplication and truncation keep the order of numbers.
__device__ __forceinline__ int bin_of(double x, double lowest, double scale)
{
  const double t = (x - lowest) * scale;
  return t <= 0.0 ? 0 : t >= BINS - 1 ? BINS - 1 : (int)t;
}
__device__ __forceinline__ double bin_scale(const double* sorted, int n)
{
  const double range = sorted[n - 1] - sorted[0];
  return range > 0.0 ? BINS / range : 0.0;
}

// table[b]: the first sorted number whose bin is b or later, for b = 0 to BINS.
extern "C" __global__ void bin_table(const double* __restrict__ sorted, int n, int* __restrict__ table)
{
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j > n) return;
  const double lowest = sorted[0], scale = bin_scale(sorted, n);
  const int first = j == 0 ? 0 : bin_of(sorted[j - 1], lowest, scale) + 1;
  const int last = j == n ? BINS : bin_of(sorted[j], lowest, scale);
  for (int b = first; b <= last; b++) table[b] = j;
}

// For each row of the class that is not sorted, the number of active pairs: sorted numbers below z, or, with
// ABOVE 0, sorted numbers above z - 1. counts[r]: how many rows have r sorted numbers before them.
extern "C" __global__ void __launch_bounds__(TPB) look_up(
    const double* __restrict__ z, const double* __restrict__ y, const double* __restrict__ sorted, int n_sorted,
    const int* __restrict__ table, double* __restrict__ pairs, int* __restrict__ counts, double* __restrict__ part,
    long long n)
{
  const double lowest = sorted[0], scale = bin_scale(sorted, n_sorted), center = sorted[n_sorted / 2];
  double sum = 0.0;
  for (long long i = (long long)blockIdx.x * TPB + threadIdx.x; i < n; i += (long long)gridDim.x * TPB) {
    double found = 0.0;
    if ((y[i] > 0.0) != ABOVE) {
      const double x = ABOVE ? z[i] : z[i] - 1.0;
      const int b = bin_of(x, lowest, scale);
      int low = table[b], high = table[b + 1];
      while (low < high) {
        const int middle = (low + high) >> 1;
        if (ABOVE ? __ldg(sorted + middle) < x : __ldg(sorted + middle) <= x) low = middle + 1;
        else high = middle;
      }
      atomicAdd(counts + low, 1);
      found = ABOVE ? low : n_sorted - low;
      sum += found * (x - center);
    }
    pairs[i] = found;
  }
  store_block_sum(sum, part);
}
