// mma_gemm.cu: the time of hidden (M,K) · weight (N,K)ᵀ in bf16 by CUTLASS' GEMM for sm_80, in several tilings.
//
//   nvcc -std=c++17 -O3 -arch=native -I CUTLASS/include mma_gemm.cu -o mma_gemm && ./mma_gemm M N K
//
// Prints a line a tiling: its name, then the median of bursts in ms. Operands are normal numbers: a GPU's clock depends
// on the bits that it multiplies.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <cutlass/gemm/device/gemm.h>

using Element = cutlass::bfloat16_t;
using Rows = cutlass::layout::RowMajor;
using Columns = cutlass::layout::ColumnMajor;
constexpr int BURSTS = 5;
constexpr float BURST_MS = 150;

template <int M, int N, int K, int STAGES>
using Gemm = cutlass::gemm::device::Gemm<
    Element, Rows, Element, Columns, Element, Rows, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<M, N, K>, cutlass::gemm::GemmShape<64, 64, K>, cutlass::gemm::GemmShape<16, 8, 16>,
    cutlass::epilogue::thread::LinearCombination<Element, 8, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, STAGES>;

// Box and Muller, of a hash of the place.
__global__ void draw(Element *out, size_t count, unsigned seed, float deviation) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
    unsigned x = (unsigned)i * 2654435761u ^ seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    unsigned y = x * 747796405u + 1;
    y ^= y >> 13;
    float radius = sqrtf(-2 * logf((x >> 8) * 0x1p-24f + 1e-9f));
    out[i] = Element(deviation * radius * cosf(6.2831853f * (y >> 8) * 0x1p-24f));
  }
}

static float ms_of(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  cudaEventSynchronize(end);
  cudaEventElapsedTime(&ms, begin, end);
  return ms;
}

template <class Tiling>
static void time(const char *name, int m, int n, int k, Element *a, Element *b, Element *c) {
  Tiling gemm;
  typename Tiling::Arguments arguments({m, n, k}, {a, k}, {b, k}, {c, n}, {c, n}, {1.f, 0.f});
  if (gemm.can_implement(arguments) != cutlass::Status::kSuccess ||
      gemm.initialize(arguments) != cutlass::Status::kSuccess)
    return;
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  gemm();
  cudaEventRecord(begin), gemm(), cudaEventRecord(end);
  int calls = std::max(1, (int)(BURST_MS / ms_of(begin, end)));
  std::vector<float> times;
  for (int burst = 0; burst < BURSTS; burst++) {
    cudaEventRecord(begin);
    for (int i = 0; i < calls; i++) gemm();
    cudaEventRecord(end);
    times.push_back(ms_of(begin, end) / calls);
  }
  std::sort(times.begin(), times.end());
  if (cudaGetLastError() == cudaSuccess) printf("%s %.4f\n", name, times[BURSTS / 2]);
}

int main(int argc, char **argv) {
  if (argc != 4) return fprintf(stderr, "usage: mma_gemm M N K\n"), 2;
  int m = atoi(argv[1]), n = atoi(argv[2]), k = atoi(argv[3]);
  Element *a, *b, *c;
  if (cudaMalloc(&a, sizeof *a * m * k) || cudaMalloc(&b, sizeof *b * n * k) || cudaMalloc(&c, sizeof *c * m * n))
    return fprintf(stderr, "mma_gemm: no memory on a GPU\n"), 3;
  draw<<<1024, 256>>>(a, (size_t)m * k, 1, 2.f);
  draw<<<1024, 256>>>(b, (size_t)n * k, 7, 1 / sqrtf(k));
#define TIME(M, N, K, STAGES) time<Gemm<M, N, K, STAGES>>(#M "x" #N "x" #K "/" #STAGES, m, n, k, a, b, c)
  TIME(128, 128, 32, 4), TIME(128, 128, 64, 3), TIME(128, 256, 32, 3), TIME(128, 256, 64, 3), TIME(128, 256, 64, 4);
  TIME(256, 128, 32, 3), TIME(256, 128, 64, 3);
  return 0;
}
