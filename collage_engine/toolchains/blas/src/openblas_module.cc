// OpenBLAS as scipy-openblas32 ships it: every symbol has the prefix scipy_.
#include <cblas.h>

#define COLLAGE_SGEMM scipy_cblas_sgemm
#include "blas_module.h"

namespace collage {

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
