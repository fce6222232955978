// Intel's MKL, by the same interface; its layer without threads.
#include <mkl_cblas.h>
#include <mkl_service.h>

#define COLLAGE_SGEMM cblas_sgemm
#include "blas_module.h"

namespace collage {

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
