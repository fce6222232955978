// Intel's MKL, by the same interface; its layer without threads.
#include <mkl_cblas.h>
#include <mkl_service.h>

#include "blas_module.h"

namespace collage {

void Multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float beta,
              float* c, int64_t ldc) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<MKL_INT>(m), static_cast<MKL_INT>(n),
              static_cast<MKL_INT>(k), 1.0f, a, static_cast<MKL_INT>(lda), b, static_cast<MKL_INT>(ldb), beta, c,
              static_cast<MKL_INT>(ldc));
}

double SmallProduct() { return 0.0; }

std::string LibraryName() {
  char text[256] = {0};
  MKL_Get_Version_String(text, static_cast<int>(sizeof text) - 1);
  return text;
}

void StartLibrary() {
  MKL_Set_Threading_Layer(MKL_THREADING_SEQUENTIAL);
  MKL_Set_Num_Threads(1);
}

}  // namespace collage
