// Losses of whole rows of scores, of pairs of scores, and of rankings: softmax, lookups, and dynamic programs.

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
    double e[EACH], largest = -1.0 / 0.0, total = 0.0, chosen = 0.0;
    #pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int k = sub + j * L;
      e[j] = k < K ? z[row * K + k] : -1.0 / 0.0;
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
#ifdef ABOVE
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
// ABOVE 0, sorted numbers above z - 1. counts[r]: how many rows have r < n_sorted sorted numbers before them.
extern "C" __global__ void __launch_bounds__(TPB) look_up(
    const double* __restrict__ z, const double* __restrict__ y, const double* __restrict__ sorted, int n_sorted,
    const int* __restrict__ table, double* __restrict__ pairs, int* __restrict__ counts, double* __restrict__ part,
    long long n)
{
  const double lowest = sorted[0], scale = bin_scale(sorted, n_sorted), center = sorted[n_sorted / 2];
  double sum = 0.0;
  int none = 0;
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
      // often all sorted numbers are before a row, or none: only the others are counted one by one
      none += low == 0;
      if (low > 0 && low < n_sorted) atomicAdd(counts + low, 1);
      found = ABOVE ? low : n_sorted - low;
      sum += found * (x - center);
    }
    pairs[i] = found;
  }
  if (none) atomicAdd(counts, none);
  store_block_sum(sum, part);
}
#endif

// ---------------------------------------------------------------- most violating rankings
#ifdef GRADES
// Dynamic programming of losses/nondecomposable/grade_programs: one block per query, whose table is in shared
// memory. States of all layers follow each other, layer t from layer_starts[t] on. chosen[t]: the row at
// position t, as grade * PLACES + number in its grade; -1 behind the last row.
extern "C" __global__ void __launch_bounds__(TPB) best_rankings(
    const double* __restrict__ score, const double* __restrict__ passed, const double* __restrict__ gain,
    const double* __restrict__ share, const long long* __restrict__ sizes, const double* __restrict__ discount,
    const double* __restrict__ c, const unsigned char* __restrict__ counts, const int* __restrict__ before,
    const int* __restrict__ layer_starts, int widest, int* __restrict__ chosen)
{
  extern __shared__ double memory[];
  double *s = memory, *cost = s + GRADES * PLACES, *excess = cost + GRADES * PLACES;
  double *best = excess + (PAIRS ? GRADES * PLACES * GRADES * (PLACES + 1) : 0), *next = best + widest;
  unsigned char* choice = (unsigned char*)(next + widest);
  const long long query = blockIdx.x;
  const int n_top = sizes[query] < PLACES ? (int)sizes[query] : PLACES;
  for (int i = threadIdx.x; i < GRADES * PLACES; i += TPB) {
    s[i] = score[query * GRADES * PLACES + i];
    cost[i] = passed[query * GRADES * PLACES + i];
  }
  if (threadIdx.x == 0) best[0] = 0.0;
  __syncthreads();
  // excess[i][h][a]: the sum over the first a rows of grade h of what they exceed row i by
  if (PAIRS)
    for (int i = threadIdx.x; i < GRADES * PLACES * GRADES; i += TPB) {
      double sum = 0.0;
      for (int a = 0; a <= PLACES; a++) {
        excess[i * (PLACES + 1) + a] = sum;
        if (a < PLACES) sum += fmax(s[i % GRADES * PLACES + a] - s[i / GRADES], 0.0);
      }
    }
  __syncthreads();
  for (int t = 0; t < n_top; t++) {
    const int first = layer_starts[t + 1], last = layer_starts[t + 2];
    for (int state = first + threadIdx.x; state < last; state += TPB) {
      const unsigned char* n = counts + state * GRADES;
      double largest = -1.0 / 0.0;
      int taken = -1;
      for (int g = 0; g < GRADES; g++) {
        if (!n[g]) continue;
        const int row = g * PLACES + n[g] - 1;
        double value = best[before[state * GRADES + g]] - discount[t] * gain[query * GRADES + g];
        if (PAIRS) {
          double behind = cost[row];
          for (int h = 0; h < GRADES; h++) behind -= excess[(row * GRADES + h) * (PLACES + 1) + n[h] - (h == g)];
          value -= share[query] * behind;
        } else value = cost[row] < 1.0 / 0.0 ? value + c[t] * s[row] : -1.0 / 0.0;
        // the first grade in any case: scores may be infinite or NaN
        if (taken < 0 || value > largest) { largest = value; taken = g; }
      }
      next[state - first] = largest;
      choice[state] = taken;
    }
    __syncthreads();
    double* swap = best; best = next; next = swap;
  }
  if (threadIdx.x) return;
  const int first = layer_starts[n_top], last = layer_starts[n_top + 1];
  int state = first;
  for (int i = first; i < last; i++) if (best[i - first] > best[state - first]) state = i;
  for (int t = PLACES - 1; t >= n_top; t--) chosen[query * PLACES + t] = -1;
  for (int t = n_top - 1; t >= 0; t--) {
    const int g = choice[state];
    chosen[query * PLACES + t] = g * PLACES + counts[state * GRADES + g] - 1;
    state = layer_starts[t] + before[state * GRADES + g];
  }
}
#endif
