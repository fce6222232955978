// cuDNN on NVIDIA devices: convolutions with what follows them as one graph, pools, softmax,
// normalisation and attention.
//
// The plan is a list of steps over tensors with explicit strides, so any layout can be asked for.
// A graph's execution plans are what cuDNN's heuristics offer; all of them that build are timed,
// and the name of the fastest is serialised with the plan.
#include <cudnn.h>
#include <cudnn_frontend.h>

#include <limits>
#include <unordered_map>

#include "collage_cuda.h"

namespace collage {
namespace {

namespace fe = cudnn_frontend;

constexpr int64_t kMostWorkspace = 256ll << 20;
constexpr int64_t kMostPlans = 12;

void CheckDnn(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) {
    TVM_FFI_THROW(RuntimeError) << what << ": " << cudnnGetErrorString(status);
  }
}

void CheckGraph(fe::error_t status, const std::string& what) {
  if (status.is_bad()) TVM_FFI_THROW(RuntimeError) << what << ": " << status.get_message();
}

// The process's handle; it lives as long as the process.
cudnnHandle_t Handle() {
  static cudnnHandle_t handle = [] {
    cudnnHandle_t made = nullptr;
    CheckDnn(cudnnCreate(&made), "starting cuDNN");
    return made;
  }();
  return handle;
}

fe::DataType_t GraphType(const std::string& dtype) {
  if (dtype == "float32") return fe::DataType_t::FLOAT;
  if (dtype == "float16") return fe::DataType_t::HALF;
  if (dtype == "bfloat16") return fe::DataType_t::BFLOAT16;
  if (dtype == "int8") return fe::DataType_t::INT8;
  TVM_FFI_THROW(TypeError) << "cuDNN takes no " << dtype;
  TVM_FFI_UNREACHABLE();
}

cudnnDataType_t PlainType(const std::string& dtype) {
  if (dtype == "float32") return CUDNN_DATA_FLOAT;
  if (dtype == "float16") return CUDNN_DATA_HALF;
  if (dtype == "bfloat16") return CUDNN_DATA_BFLOAT16;
  TVM_FFI_THROW(TypeError) << "cuDNN takes no " << dtype;
  TVM_FFI_UNREACHABLE();
}

// An operand with its logical sizes and its strides, in elements.
struct TensorAbout {
  explicit TensorAbout(const json::Object& about)
      : operand(about),
        dims(GetInts(about, "dims")),
        strides(GetInts(about, "strides")),
        dtype(GetString(about, "dtype")) {}
  Operand operand;
  std::vector<int64_t> dims, strides;
  std::string dtype;
};

TensorAbout TensorOf(const json::Object& step, const char* key) {
  return TensorAbout(Field(step, key).cast<json::Object>());
}

class Step {
 public:
  explicit Step(const json::Object& about) : what_(GetString(about, "op")), name_(GetString(about, "name")) {}
  virtual ~Step() = default;
  virtual size_t MakeReady() = 0;
  // Choose an engine; the operands hold what they will, or something like it, and the result too
  // from then on, since the steps after it shall choose on real data.
  virtual void Choose(const Memory& memory, void* workspace, cudaStream_t stream) {
    Launch(memory, workspace, stream);
  }
  // On the stream that the handle has been given.
  virtual void Launch(const Memory&, void* workspace, cudaStream_t) = 0;
  virtual std::optional<std::string> choice() const { return std::nullopt; }
  json::Object Describe() const {
    json::Object out;
    out.Set(ffi::String("what"), ffi::String(what_));
    out.Set(ffi::String("name"), ffi::String(name_));
    if (auto chosen = choice()) out.Set(ffi::String("engine"), ffi::String(*chosen));
    return out;
  }

 protected:
  std::string what_, name_;
};

// ---- graphs ---------------------------------------------------------------------------------

using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

const std::unordered_map<std::string, fe::PointwiseMode_t>& Modes() {
  static const std::unordered_map<std::string, fe::PointwiseMode_t> modes = {
      {"add", fe::PointwiseMode_t::ADD},          {"subtract", fe::PointwiseMode_t::SUB},
      {"multiply", fe::PointwiseMode_t::MUL},     {"divide", fe::PointwiseMode_t::DIV},
      {"maximum", fe::PointwiseMode_t::MAX},      {"minimum", fe::PointwiseMode_t::MIN},
      {"relu", fe::PointwiseMode_t::RELU_FWD},    {"clip", fe::PointwiseMode_t::RELU_FWD},
      {"sigmoid", fe::PointwiseMode_t::SIGMOID_FWD}, {"tanh", fe::PointwiseMode_t::TANH_FWD},
      {"swish", fe::PointwiseMode_t::SWISH_FWD},  {"elu", fe::PointwiseMode_t::ELU_FWD},
      {"gelu", fe::PointwiseMode_t::GELU_FWD},    {"gelu_tanh", fe::PointwiseMode_t::GELU_APPROX_TANH_FWD},
      {"softplus", fe::PointwiseMode_t::SOFTPLUS_FWD}, {"exp", fe::PointwiseMode_t::EXP},
      {"sqrt", fe::PointwiseMode_t::SQRT},        {"rsqrt", fe::PointwiseMode_t::RSQRT},
      {"erf", fe::PointwiseMode_t::ERF},          {"abs", fe::PointwiseMode_t::ABS},
      {"negative", fe::PointwiseMode_t::NEG},
  };
  return modes;
}

class GraphStep : public Step {
 public:
  explicit GraphStep(const json::Object& about) : Step(about), about_(about) {
    strict_ = GetString(about, "math") == "float32";
    if (Has(about, "engine")) wanted_ = GetString(about, "engine");
  }

  size_t MakeReady() final {
    for (variant_ = 0; variant_ + 1 < Variants(); ++variant_) {
      try {
        return BuildVariant();
      } catch (const ffi::Error&) {
        continue;  // cuDNN has no engine for it put this way
      }
    }
    return BuildVariant();
  }

  void Choose(const Memory& memory, void* workspace, cudaStream_t stream) final {
    if (plans_.size() == 1) return Execute(memory, workspace, chosen_.first);
    Stopwatch watch(stream);
    float best = std::numeric_limits<float>::infinity();
    for (const auto& plan : plans_) {
      float ms;
      try {
        ms = watch.Time([&] { Execute(memory, workspace, plan.first); });
      } catch (const ffi::Error&) {
        continue;
      }
      if (ms < best) {
        best = ms;
        chosen_ = plan;
      }
    }
    if (best == std::numeric_limits<float>::infinity()) {
      TVM_FFI_THROW(RuntimeError) << name_ << ": no engine of cuDNN runs it";
    }
  }

  void Launch(const Memory& memory, void* workspace, cudaStream_t) final {
    Execute(memory, workspace, chosen_.first);
  }

  std::optional<std::string> choice() const final {
    if (chosen_.second.empty()) return std::nullopt;
    return chosen_.second;
  }

 protected:
  // Add the operations to graph_.
  virtual void Compose() = 0;
  // How many ways there are to put it, and the one to be composed now.
  virtual int Variants() const { return 1; }
  int variant() const { return variant_; }

  const json::Object& about() const { return about_; }
  fe::graph::Graph& graph() { return *graph_; }

  GraphTensor Input(const json::Object& object) {
    TensorAbout about(object);
    GraphTensor tensor = graph_->tensor(fe::graph::Tensor_attributes()
                                            .set_uid(Bind(about.operand))
                                            .set_dim(about.dims)
                                            .set_stride(about.strides)
                                            .set_data_type(GraphType(about.dtype)));
    return tensor;
  }
  GraphTensor Input(const char* key) { return Input(Field(about_, key).cast<json::Object>()); }

  void Output(const GraphTensor& tensor, const char* key) {
    TensorAbout about = TensorOf(about_, key);
    tensor->set_output(true)
        .set_uid(Bind(about.operand))
        .set_dim(about.dims)
        .set_stride(about.strides)
        .set_data_type(GraphType(about.dtype));
  }

  GraphTensor Pointwise(const json::Object& post, const GraphTensor& value) {
    const std::string mode = GetString(post, "mode");
    auto found = Modes().find(mode);
    if (found == Modes().end()) TVM_FFI_THROW(ValueError) << "cuDNN has no pointwise " << mode;
    auto attributes = fe::graph::Pointwise_attributes().set_mode(found->second);
    if (Has(post, "low")) attributes.set_relu_lower_clip(static_cast<float>(Get<double>(post, "low")));
    if (Has(post, "high")) attributes.set_relu_upper_clip(static_cast<float>(Get<double>(post, "high")));
    if (Has(post, "slope")) {
      attributes.set_relu_lower_clip_slope(static_cast<float>(Get<double>(post, "slope")));
    }
    if (Has(post, "alpha")) attributes.set_elu_alpha(static_cast<float>(Get<double>(post, "alpha")));
    if (!Has(post, "other")) return graph_->pointwise(value, attributes);
    GraphTensor other = Input(Field(post, "other").cast<json::Object>());
    bool swapped = Has(post, "swapped") && Get<bool>(post, "swapped");
    return swapped ? graph_->pointwise(other, value, attributes)
                   : graph_->pointwise(value, other, attributes);
  }

  GraphTensor Posts(GraphTensor value) {
    for (const ffi::Any& post : Get<json::Array>(about_, "posts")) {
      value = Pointwise(post.cast<json::Object>(), value);
    }
    return value;
  }

 private:
  size_t BuildVariant() {
    graph_ = std::make_shared<fe::graph::Graph>();
    graph_->set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    operands_.clear();
    Compose();
    CheckGraph(graph_->validate(), name_);
    CheckGraph(graph_->build_operation_graph(Handle()), name_);
    CheckGraph(graph_->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}), name_);
    if (strict_) {
      // The same arithmetic for all: no engine that rounds float32 to less inside.
      graph_->deselect_numeric_notes({fe::NumericalNote_t::TENSOR_CORE,
                                      fe::NumericalNote_t::DOWN_CONVERT_INPUTS,
                                      fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION});
    }
    graph_->deselect_workspace_greater_than(kMostWorkspace);
    CheckGraph(graph_->check_support(Handle()), name_);
    int64_t workspace = 0;
    plans_.clear();
    for (int64_t i = 0; i < graph_->get_execution_plan_count(); ++i) {
      if (static_cast<int64_t>(plans_.size()) >= kMostPlans) break;
      std::string engine;
      if (graph_->get_plan_name_at_index(i, engine).is_bad()) continue;
      if (wanted_ && engine != *wanted_) continue;
      if (graph_->build_plan_at_index(Handle(), i).is_bad()) continue;
      plans_.emplace_back(i, engine);
      workspace = std::max(workspace, graph_->get_workspace_size_plan_at_index(i));
    }
    if (plans_.empty() && wanted_) {
      wanted_.reset();  // chosen with another cuDNN or device: choose again
      return BuildVariant();
    }
    if (plans_.empty()) TVM_FFI_THROW(RuntimeError) << name_ << ": no engine of cuDNN builds it";
    chosen_ = plans_.front();
    return static_cast<size_t>(workspace);
  }

  int64_t Bind(const Operand& operand) {
    operands_.push_back(operand);
    return static_cast<int64_t>(operands_.size());
  }

  void Execute(const Memory& memory, void* workspace, int64_t plan) {
    std::unordered_map<int64_t, void*> pack;
    for (size_t i = 0; i < operands_.size(); ++i) {
      pack[static_cast<int64_t>(i) + 1] = memory.At(operands_[i]);
    }
    CheckGraph(graph_->execute_plan_at_index(Handle(), pack, workspace, plan), name_);
  }

  json::Object about_;
  bool strict_ = true;
  int variant_ = 0;
  std::optional<std::string> wanted_;
  std::shared_ptr<fe::graph::Graph> graph_;
  std::vector<Operand> operands_;
  std::vector<std::pair<int64_t, std::string>> plans_;
  std::pair<int64_t, std::string> chosen_;
};

class Convolution : public GraphStep {
 public:
  using GraphStep::GraphStep;

 protected:
  // Integer sums are handed on as int32 or as float32; not every release has engines for both.
  int Variants() const final { return Integers() ? 2 : 1; }

  void Compose() final {
    GraphTensor x = Input("x"), w = Input("w");
    auto attributes = fe::graph::Conv_fprop_attributes()
                          .set_pre_padding(GetInts(about(), "pre"))
                          .set_post_padding(GetInts(about(), "post"))
                          .set_stride(GetInts(about(), "stride"))
                          .set_dilation(GetInts(about(), "dilation"));
    if (Integers()) attributes.set_compute_data_type(fe::DataType_t::INT32);
    GraphTensor y = graph().conv_fprop(x, w, attributes);
    if (Integers()) y->set_data_type(variant() == 0 ? fe::DataType_t::INT32 : fe::DataType_t::FLOAT);
    Output(Posts(y), "y");
  }

 private:
  bool Integers() const { return Has(about(), "sums"); }
};

// A transposed convolution is the gradient of a convolution with respect to its data.
class Deconvolution : public GraphStep {
 public:
  using GraphStep::GraphStep;

 protected:
  void Compose() final {
    GraphTensor x = Input("x"), w = Input("w");
    GraphTensor y = graph().conv_dgrad(x, w, fe::graph::Conv_dgrad_attributes()
                                                 .set_pre_padding(GetInts(about(), "pre"))
                                                 .set_post_padding(GetInts(about(), "post"))
                                                 .set_stride(GetInts(about(), "stride"))
                                                 .set_dilation(GetInts(about(), "dilation")));
    y->set_dim(TensorOf(about(), "y").dims);
    Output(Posts(y), "y");
  }
};

class Elementwise : public GraphStep {
 public:
  using GraphStep::GraphStep;

 protected:
  void Compose() final { Output(Posts(Input("x")), "y"); }
};

class LayerNorm : public GraphStep {
 public:
  using GraphStep::GraphStep;

 protected:
  void Compose() final {
    GraphTensor x = Input("x"), scale = Input("scale"), bias = Input("bias");
    GraphTensor epsilon = graph().tensor(static_cast<float>(Get<double>(about(), "epsilon")));
    auto [y, mean, inverse] = graph().layernorm(
        x, scale, bias,
        fe::graph::Layernorm_attributes()
            .set_forward_phase(fe::NormFwdPhase_t::INFERENCE)
            .set_epsilon(epsilon));
    Output(y, "y");
  }
};

class Attention : public GraphStep {
 public:
  using GraphStep::GraphStep;

 protected:
  void Compose() final {
    GraphTensor q = Input("q"), k = Input("k"), v = Input("v");
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_attn_scale(static_cast<float>(Get<double>(about(), "scale")));
    attributes.set_generate_stats(false);
    if (Has(about(), "bias")) attributes.set_bias(Input("bias"));
    auto [y, statistics] = graph().sdpa(q, k, v, attributes);
    Output(y, "y");
  }
};

// ---- functions without graphs -----------------------------------------------------------------

class PlainTensor {
 public:
  explicit PlainTensor(const TensorAbout& about) {
    CheckDnn(cudnnCreateTensorDescriptor(&descriptor_), "describing a tensor");
    std::vector<int> dims(about.dims.begin(), about.dims.end());
    std::vector<int> strides(about.strides.begin(), about.strides.end());
    CheckDnn(cudnnSetTensorNdDescriptor(descriptor_, PlainType(about.dtype),
                                        static_cast<int>(dims.size()), dims.data(), strides.data()),
             "describing a tensor");
  }
  PlainTensor(const PlainTensor&) = delete;
  PlainTensor& operator=(const PlainTensor&) = delete;
  ~PlainTensor() { cudnnDestroyTensorDescriptor(descriptor_); }
  cudnnTensorDescriptor_t get() const { return descriptor_; }

 private:
  cudnnTensorDescriptor_t descriptor_ = nullptr;
};

class PlainStep : public Step {
 public:
  explicit PlainStep(const json::Object& about)
      : Step(about), x_(TensorOf(about, "x")), y_(TensorOf(about, "y")) {}
  size_t MakeReady() override {
    source_ = std::make_unique<PlainTensor>(x_);
    result_ = std::make_unique<PlainTensor>(y_);
    return 0;
  }

 protected:
  TensorAbout x_, y_;
  std::unique_ptr<PlainTensor> source_, result_;
  float one_ = 1.0f, zero_ = 0.0f;
};

class Pool : public PlainStep {
 public:
  explicit Pool(const json::Object& about) : PlainStep(about) {
    const std::string mode = GetString(about, "mode");
    mode_ = mode == "max"   ? CUDNN_POOLING_MAX_DETERMINISTIC
            : mode == "avg" ? CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING
                            : CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
    auto read = [&](const char* key) {
      std::vector<int64_t> wide = GetInts(about, key);
      return std::vector<int>(wide.begin(), wide.end());
    };
    window_ = read("window"), pad_ = read("pad"), stride_ = read("stride");
  }
  ~Pool() override {
    if (pooling_ != nullptr) cudnnDestroyPoolingDescriptor(pooling_);
  }
  size_t MakeReady() final {
    PlainStep::MakeReady();
    CheckDnn(cudnnCreatePoolingDescriptor(&pooling_), "describing a pool");
    CheckDnn(cudnnSetPoolingNdDescriptor(pooling_, mode_, CUDNN_PROPAGATE_NAN,
                                         static_cast<int>(window_.size()), window_.data(),
                                         pad_.data(), stride_.data()),
             "describing a pool");
    return 0;
  }
  void Launch(const Memory& memory, void*, cudaStream_t) final {
    CheckDnn(cudnnPoolingForward(Handle(), pooling_, &one_, source_->get(), memory.At(x_.operand),
                                 &zero_, result_->get(), memory.At(y_.operand)),
             name_.c_str());
  }

 private:
  cudnnPoolingMode_t mode_;
  std::vector<int> window_, pad_, stride_;
  cudnnPoolingDescriptor_t pooling_ = nullptr;
};

// Over axis 1 of a tensor seen as [outer, axis, inner, 1].
class Softmax : public PlainStep {
 public:
  explicit Softmax(const json::Object& about) : PlainStep(about) {
    algorithm_ = Get<bool>(about, "log") ? CUDNN_SOFTMAX_LOG : CUDNN_SOFTMAX_ACCURATE;
  }
  void Launch(const Memory& memory, void*, cudaStream_t) final {
    CheckDnn(cudnnSoftmaxForward(Handle(), algorithm_, CUDNN_SOFTMAX_MODE_CHANNEL, &one_,
                                 source_->get(), memory.At(x_.operand), &zero_, result_->get(),
                                 memory.At(y_.operand)),
             name_.c_str());
  }

 private:
  cudnnSoftmaxAlgorithm_t algorithm_;
};

std::unique_ptr<Step> MakeStep(const json::Object& about) {
  const std::string op = GetString(about, "op");
  if (op == "conv") return std::make_unique<Convolution>(about);
  if (op == "deconv") return std::make_unique<Deconvolution>(about);
  if (op == "pointwise") return std::make_unique<Elementwise>(about);
  if (op == "layer_norm") return std::make_unique<LayerNorm>(about);
  if (op == "attention") return std::make_unique<Attention>(about);
  if (op == "pool") return std::make_unique<Pool>(about);
  if (op == "softmax") return std::make_unique<Softmax>(about);
  TVM_FFI_THROW(ValueError) << "no step " << op;
  TVM_FFI_UNREACHABLE();
}

class CudnnModule : public StepsModule<Step> {
 public:
  CudnnModule(const std::string& symbol, const std::string& plan_text, const GivenWeights& weights)
      : StepsModule(symbol, plan_text, weights, "engine") {
    for (const ffi::Any& step : Get<json::Array>(plan(), "steps")) {
      steps().push_back(MakeStep(step.cast<json::Object>()));
    }
    PrepareIfPossible();
  }

 protected:
  void UseStream(cudaStream_t stream) final {
    CheckDnn(cudnnSetStream(Handle(), stream), "choosing the stream");
  }

  std::string Describe() const final {
    return DescribeSteps("cudnn " + std::to_string(cudnnGetVersion()), steps());
  }
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::CudnnModule>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check", [] {
    return tvm::ffi::String(std::to_string(cudnnGetVersion()));
  });
}
