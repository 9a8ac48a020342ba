// out[j] = sum of part[i][j] over i < count, in a fixed order: a block of 32 x 32 threads adds 32 columns.
extern "C" __global__ void __launch_bounds__(1024) add_parts(
    const double* __restrict__ part, int count, long long width, double* __restrict__ out)
{
  __shared__ double across[32][33];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const long long col = (long long)blockIdx.x * 32 + lane;
  double own = 0.0;
  if (col < width)
    for (int i = warp; i < count; i += 32) own += part[(long long)i * width + col];
  across[warp][lane] = own;
  __syncthreads();
  double total = across[lane][warp];          // transposed: warp j adds column j
  #pragma unroll
  for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
  const long long target = (long long)blockIdx.x * 32 + warp;
  if (lane == 0 && target < width) out[target] = total;
}
