// cuDNN on NVIDIA devices: each convolution or product with what follows it is one graph, and each
// attention.
//
// The plan is a list of steps over tensors with explicit strides, so any layout can be asked for.
// A graph's execution plans are what cuDNN's heuristics offer; all of them that build are timed,
// and the name of the fastest is serialised with the plan.
#include <cudnn.h>
#include <cudnn_frontend.h>

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
  static const std::map<std::string, fe::DataType_t> known = {
      {"float32", fe::DataType_t::FLOAT},
      {"float16", fe::DataType_t::HALF},
      {"bfloat16", fe::DataType_t::BFLOAT16}};
  return Named(known, dtype, "cuDNN takes no");
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

using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

fe::PointwiseMode_t Mode(const std::string& name) {
  static const std::map<std::string, fe::PointwiseMode_t> modes = {
      {"add", fe::PointwiseMode_t::ADD},          {"multiply", fe::PointwiseMode_t::MUL},
      {"relu", fe::PointwiseMode_t::RELU_FWD},    {"clip", fe::PointwiseMode_t::RELU_FWD},
      {"sigmoid", fe::PointwiseMode_t::SIGMOID_FWD}, {"tanh", fe::PointwiseMode_t::TANH_FWD},
      {"swish", fe::PointwiseMode_t::SWISH_FWD},  {"gelu", fe::PointwiseMode_t::GELU_FWD},
      {"gelu_tanh", fe::PointwiseMode_t::GELU_APPROX_TANH_FWD},
  };
  return Named(modes, name, "cuDNN has no pointwise");
}

// A convolution or product with what follows it, or an attention.
class Step {
 public:
  static constexpr const char* kChoice = "engine";
  static std::unique_ptr<Step> Make(const json::Object& about) { return std::make_unique<Step>(about); }
  static std::string Library() { return "cudnn " + std::to_string(cudnnGetVersion()); }

  explicit Step(const json::Object& about)
      : about_(about), what_(GetString(about, "op")), name_(GetString(about, "name")) {
    strict_ = GetString(about, "math") == "float32";
    if (Has(about, "engine")) wanted_ = GetString(about, "engine");
  }

  // Build the graph's execution plans; returns the bytes of workspace that they want.
  size_t MakeReady() {
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
      return MakeReady();
    }
    if (plans_.empty()) TVM_FFI_THROW(RuntimeError) << name_ << ": no engine of cuDNN builds it";
    chosen_ = plans_.front();
    return static_cast<size_t>(workspace);
  }

  // Choose an engine; the operands hold what they will, or something like it, and the result too
  // from then on, since the steps after it shall choose on real data.
  void Choose(const Memory& memory, void* workspace, cudaStream_t stream) {
    if (plans_.size() == 1) return Launch(memory, workspace, stream);
    int fastest = Fastest(stream, static_cast<int>(plans_.size()), [&](int i) {
      Execute(memory, workspace, stream, plans_[i].first);
    });
    if (fastest < 0) TVM_FFI_THROW(RuntimeError) << name_ << ": no engine of cuDNN runs it";
    chosen_ = plans_[fastest];
  }

  void Launch(const Memory& memory, void* workspace, cudaStream_t stream) {
    Execute(memory, workspace, stream, chosen_.first);
  }

  std::optional<std::string> choice() const {
    if (chosen_.second.empty()) return std::nullopt;
    return chosen_.second;
  }

  json::Object Describe() const {
    json::Object out;
    out.Set(ffi::String("what"), ffi::String(what_));
    out.Set(ffi::String("name"), ffi::String(name_));
    if (auto chosen = choice()) out.Set(ffi::String("engine"), ffi::String(*chosen));
    return out;
  }

 private:
  // Add the operations to graph_.
  void Compose() {
    if (what_ == "attention") return ComposeAttention();
    GraphTensor x = Input(about_, "x"), w, y;
    if (Has(about_, "w")) w = Input(about_, "w");
    const TensorAbout result(Get<json::Object>(about_, "y"));
    if (what_ == "pointwise") {
      y = x;
    } else if (what_ == "conv") {
      y = graph_->conv_fprop(x, w, Windows(fe::graph::Conv_fprop_attributes()));
    } else if (what_ == "matmul") {
      y = graph_->matmul(x, w, fe::graph::Matmul_attributes());
    } else {
      // A transposed convolution is the gradient of a convolution with respect to its data.
      y = graph_->conv_dgrad(x, w, Windows(fe::graph::Conv_dgrad_attributes()));
      y->set_dim(result.dims);
    }
    for (const ffi::Any& post : Get<json::Array>(about_, "posts")) {
      y = Pointwise(post.cast<json::Object>(), y);
    }
    Output(y, result);
  }

  // softmax(q kT scale + mask) v, all of batch, heads, rows, width; k and v may have fewer heads.
  void ComposeAttention() {
    auto attributes = fe::graph::SDPA_attributes();
    attributes.set_name(name_)
        .set_generate_stats(false)
        .set_attn_scale(static_cast<float>(Get<double>(about_, "scale")));
    if (Has(about_, "mask")) attributes.set_bias(Input(about_, "mask"));
    GraphTensor q = Input(about_, "q"), k = Input(about_, "k"), v = Input(about_, "v");
    Output(graph_->sdpa(q, k, v, std::move(attributes))[0],
           TensorAbout(Get<json::Object>(about_, "y")));
  }

  void Output(const GraphTensor& y, const TensorAbout& result) {
    y->set_output(true)
        .set_uid(Bind(result.operand))
        .set_dim(result.dims)
        .set_stride(result.strides)
        .set_data_type(GraphType(result.dtype));
  }

  template <typename Attributes>
  Attributes Windows(Attributes attributes) const {
    attributes.set_pre_padding(GetInts(about_, "pre"))
        .set_post_padding(GetInts(about_, "post"))
        .set_stride(GetInts(about_, "stride"))
        .set_dilation(GetInts(about_, "dilation"));
    return attributes;
  }

  GraphTensor Input(const json::Object& object, const char* key) {
    TensorAbout about(Get<json::Object>(object, key));
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(Bind(about.operand))
                              .set_dim(about.dims)
                              .set_stride(about.strides)
                              .set_data_type(GraphType(about.dtype)));
  }
  GraphTensor Pointwise(const json::Object& post, const GraphTensor& value) {
    auto attributes = fe::graph::Pointwise_attributes().set_mode(Mode(GetString(post, "mode")));
    if (Has(post, "low")) attributes.set_relu_lower_clip(static_cast<float>(Get<double>(post, "low")));
    if (Has(post, "high")) attributes.set_relu_upper_clip(static_cast<float>(Get<double>(post, "high")));
    if (Has(post, "slope")) {
      attributes.set_relu_lower_clip_slope(static_cast<float>(Get<double>(post, "slope")));
    }
    if (!Has(post, "other")) return graph_->pointwise(value, attributes);
    return graph_->pointwise(value, Input(post, "other"), attributes);
  }

  int64_t Bind(const Operand& operand) {
    operands_.push_back(operand);
    return static_cast<int64_t>(operands_.size());
  }

  void Execute(const Memory& memory, void* workspace, cudaStream_t stream, int64_t plan) {
    CheckDnn(cudnnSetStream(Handle(), stream), "choosing the stream");
    std::unordered_map<int64_t, void*> pack;
    for (size_t i = 0; i < operands_.size(); ++i) {
      pack[static_cast<int64_t>(i) + 1] = memory.At(operands_[i]);
    }
    CheckGraph(graph_->execute_plan_at_index(Handle(), pack, workspace, plan), name_);
  }

  json::Object about_;
  std::string what_, name_;
  bool strict_ = true;
  std::optional<std::string> wanted_;
  std::shared_ptr<fe::graph::Graph> graph_;
  std::vector<Operand> operands_;
  std::vector<std::pair<int64_t, std::string>> plans_;
  std::pair<int64_t, std::string> chosen_;
};

}  // namespace
}  // namespace collage

TVM_FFI_STATIC_INIT_BLOCK() {
  collage::RegisterModule<collage::StepsModule<collage::Step>>();
  tvm::ffi::reflection::GlobalDef().def(COLLAGE_KIND ".check", [] {
    return tvm::ffi::String(std::to_string(cudnnGetVersion()));
  });
}
