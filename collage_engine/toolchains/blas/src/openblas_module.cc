// OpenBLAS as scipy-openblas32 ships it: every symbol has the prefix scipy_.
#include <cblas.h>

#include "blas_module.h"

namespace collage {

void Multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float beta,
              float* c, int64_t ldc) {
  scipy_cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<blasint>(m), static_cast<blasint>(n),
                    static_cast<blasint>(k), 1.0f, a, static_cast<blasint>(lda), b, static_cast<blasint>(ldb), beta, c,
                    static_cast<blasint>(ldc));
}

double SmallProduct() {
  // The unpacked kernels of sgemm exist for AVX-512 only, up to 100·100·100.
  static const double most = [] {
    const std::string core = scipy_openblas_get_corename();
    return core == "SkylakeX" || core == "Cooperlake" || core == "SapphireRapids" ? 1e6 : 0.0;
  }();
  return most;
}

std::string LibraryName() { return scipy_openblas_get_config(); }

void StartLibrary() { scipy_openblas_set_num_threads(1); }

}  // namespace collage
