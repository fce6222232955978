// Positions of functions in OrtApi, the table of ONNX Runtime's C API, which is only ever appended to.
// Each is checked by what the function does: those of the adapter in
// tests/engine/test_toolchain_onnxruntime.py, those of an artifact that is an operator of ONNX Runtime
// (artifact/loader/custom_op.cc) in tests/engine/test_operator_for_onnxruntime.py.
#ifndef COLLAGE_ORT_SLOTS_H_
#define COLLAGE_ORT_SLOTS_H_

#include <cstdint>

namespace collage {

enum OrtSlot : int {
  kCreateStatus = 0,
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kDisableTelemetryEvents = 6,
  kCreateSession = 7,
  kCreateSessionFromArray = 8,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetOptimizedModelFilePath = 11,
  kEnableProfiling = 14,
  kSetIntraOpNumThreads = 24,
  kSetInterOpNumThreads = 25,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kCreateTensorWithDataAsOrtValue = 49,
  kGetTensorMutableData = 51,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kCreateCpuMemoryInfo = 69,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kReleaseMemoryInfo = 94,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseTensorTypeAndShapeInfo = 99,
  kReleaseSessionOptions = 100,
  kCreateEnvWithGlobalThreadPools = 119,
  kDisablePerSessionThreads = 120,
  kCreateThreadingOptions = 121,
  kReleaseThreadingOptions = 122,
  kAddSessionConfigEntry = 130,
  kSetGlobalIntraOpNumThreads = 147,
  kSetGlobalInterOpNumThreads = 148,
  kSetGlobalSpinControl = 149,
  kAddExternalInitializersFromFilesInMemory = 279,
};

// The version of the table that is asked for: that of ONNX Runtime 1.18.
inline constexpr uint32_t kOrtApiVersion = 18;

}  // namespace collage

#endif  // COLLAGE_ORT_SLOTS_H_
