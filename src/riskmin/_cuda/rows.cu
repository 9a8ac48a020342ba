// Losses of cached scores z + t dz + b, one score per row; sums in double precision, in a fixed order.
#define WARPS (TPB / 32)

// Sums over the threads of a block of `count` numbers each: total[j] at thread 0 .. count - 1 of the result.
template <int COUNT>
__device__ __forceinline__ void write_block_sums(const double (&own)[COUNT], double* __restrict__ out)
{
  __shared__ double across[WARPS][COUNT];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  #pragma unroll
  for (int j = 0; j < COUNT; j++) {
    double total = own[j];
    #pragma unroll
    for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
    if (lane == 0) across[warp][j] = total;
  }
  __syncthreads();
  if (threadIdx.x < COUNT) {
    double total = 0.0;
    for (int j = 0; j < WARPS; j++) total += across[j][threadIdx.x];
    out[threadIdx.x] = total;
  }
}

#define ROW_LOOP(i) \
  for (long long i = (long long)blockIdx.x * TPB + threadIdx.x; i < n; i += (long long)gridDim.x * TPB)

// The slots: value, slopes in t and b, offset, sum of |slopes|, second derivatives in t t, t b and b b.
extern "C" __global__ void __launch_bounds__(TPB) line_sums(
    const double* __restrict__ z, const double* __restrict__ dz, double t, double b, const LABEL* __restrict__ y,
    const double* __restrict__ c, double c0, const double* __restrict__ k, double* __restrict__ part, long long n)
{
  double own[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  ROW_LOOP(i) {
    const double d = dz ? dz[i] : 0.0;
    double s = z[i];
    if (t != 0.0) s += t * d;                 // rounded after each operation, as in the array code
    double value, slope, offset, curvature;
    row_loss(s + b, (double)y[i], WEIGHTED ? c[i] : c0, k, value, slope, offset, curvature);
    own[0] += value; own[1] += slope * d; own[2] += slope; own[3] += offset; own[4] += fabs(slope);
    own[5] += curvature * d * d; own[6] += curvature * d; own[7] += curvature;
  }
  write_block_sums(own, part + (long long)blockIdx.x * 8);
}

// Value and slope at the points z + t_j dz, j < POINTS: slots value_j, slope_j.
extern "C" __global__ void __launch_bounds__(TPB) many_points(
    const double* __restrict__ z, const double* __restrict__ dz, const double* __restrict__ t, double b,
    const LABEL* __restrict__ y, const double* __restrict__ c, double c0, const double* __restrict__ k,
    double* __restrict__ part, long long n)
{
  double own[2 * POINTS], ts[POINTS];
  #pragma unroll
  for (int j = 0; j < POINTS; j++) { ts[j] = t[j]; own[2 * j] = own[2 * j + 1] = 0.0; }
  ROW_LOOP(i) {
    const double d = dz[i], label = (double)y[i], weight = WEIGHTED ? c[i] : c0, zi = z[i];
    #pragma unroll
    for (int j = 0; j < POINTS; j++) {
      double value, slope, offset, curvature;
      row_loss((zi + ts[j] * d) + b, label, weight, k, value, slope, offset, curvature);
      own[2 * j] += value; own[2 * j + 1] += slope * d;
    }
  }
  write_block_sums(own, part + (long long)blockIdx.x * 2 * POINTS);
}

// slopes = sum_j m_j of the slopes at z + t dz + b_j; sums: value, offset, and the sizes of terms that cancel.
extern "C" __global__ void __launch_bounds__(TPB) mixed_tangent(
    const double* __restrict__ z, const double* __restrict__ dz, double t, const double* __restrict__ mix,
    int count, const LABEL* __restrict__ y, const double* __restrict__ c, double c0, const double* __restrict__ k,
    double* __restrict__ slopes, double* __restrict__ part, long long n)
{
  double own[4] = {0, 0, 0, 0}, largest = 0.0;
  for (int j = 0; j < count; j++) largest = fmax(largest, fabs(mix[j]));
  ROW_LOOP(i) {
    const double step = t != 0.0 && dz ? t * dz[i] : 0.0, s = z[i] + step;
    double g = 0.0;
    for (int j = 0; j < count; j++) {
      double value, slope, offset, curvature;
      row_loss(s + mix[j], (double)y[i], WEIGHTED ? c[i] : c0, k, value, slope, offset, curvature);
      const double m = mix[count + j];
      g += m * slope; own[0] += m * value; own[1] += m * offset;
    }
    slopes[i] = g;
    own[2] += fabs(g) * (fabs(s) + largest);
    own[3] += fabs(g) * (fabs(z[i]) + fabs(step));
  }
  write_block_sums(own, part + (long long)blockIdx.x * 4);
}

// Slopes and second derivatives at z + b, and the sums of the cut, in the slots of `_numba.newton.slots`.
extern "C" __global__ void __launch_bounds__(TPB) score_cut(
    const double* __restrict__ z, double b, const LABEL* __restrict__ y, const double* __restrict__ c, double c0,
    const double* __restrict__ k, double* __restrict__ slopes, double* __restrict__ curvatures,
    double* __restrict__ part, long long n)
{
  double own[10] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  ROW_LOOP(i) {
    const double s = z[i] + b;
    double value, slope, offset, curvature;
    row_loss(s, (double)y[i], WEIGHTED ? c[i] : c0, k, value, slope, offset, curvature);
    slopes[i] = slope; curvatures[i] = curvature;
    const double at_zero = value + offset - slope * s;      // the height of the cut where all scores are 0
    const bool up = curvature > 0.0 && slope > 0.0, down = curvature > 0.0 && slope < 0.0;
    own[0] += value; own[1] += at_zero; own[2] += fabs(value) + fabs(offset) + fabs(slope) * (fabs(z[i]) + fabs(b));
    own[3] += slope; own[4] += fabs(slope); own[5] += curvature;
    own[6] += up ? slope : 0.0; own[7] += up ? at_zero : 0.0;
    own[8] -= down ? slope : 0.0; own[9] += down ? at_zero : 0.0;
  }
  write_block_sums(own, part + (long long)blockIdx.x * 10);
}
