// Builds an engine of an ONNX file with TensorRT 8.6, times it as a CUDA graph, and runs it on given images.
//   bench build MODEL.onnx ENGINE BATCH LEVEL fp16|fp32
//   bench time ENGINE RUNS
//   bench detect ENGINE <images >outputs
//
// `build` and `time` print a line of JSON. `detect` reads batches of images, float32, until its input ends, and writes
// the outputs of each, by name in alphabetical order. Errors are lines on stderr, with exit code 1.
#include <NvInfer.h>
#include <NvOnnxParser.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace trt = nvinfer1;

namespace {
constexpr auto kExplicitBatch = 1U << static_cast<int>(trt::NetworkDefinitionCreationFlag::kEXPLICIT_BATCH);
constexpr int kInputs = 4;    // rotated, so that none stays in a cache
constexpr int kWarmUps = 20;  // replays before the timed ones

[[noreturn]] void fail(std::string const& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T* need(T* made, char const* what) {
  if (made == nullptr) fail(std::string("TensorRT made no ") + what);
  return made;
}

void check(cudaError_t error) {
  if (error != cudaSuccess) fail(std::string("CUDA: ") + cudaGetErrorString(error));
}

class Logger : public trt::ILogger {
  void log(Severity severity, char const* message) noexcept override {
    if (severity <= Severity::kERROR) std::fprintf(stderr, "TensorRT: %.400s\n", message);
  }
} logger;

void build(char const* model, char const* out, int batch, int level, bool half) {
  auto const begin = std::chrono::steady_clock::now();
  std::unique_ptr<trt::IBuilder> builder(need(trt::createInferBuilder(logger), "builder"));
  std::unique_ptr<trt::INetworkDefinition> network(need(builder->createNetworkV2(kExplicitBatch), "network"));
  std::unique_ptr<nvonnxparser::IParser> parser(need(nvonnxparser::createParser(*network, logger), "parser"));
  if (!parser->parseFromFile(model, static_cast<int>(trt::ILogger::Severity::kERROR))) {
    fail(parser->getNbErrors() > 0 ? parser->getError(0)->desc() : "the parser refuses the file");
  }
  std::unique_ptr<trt::IBuilderConfig> config(need(builder->createBuilderConfig(), "configuration"));
  config->setMemoryPoolLimit(trt::MemoryPoolType::kWORKSPACE, size_t{8} << 30);
  config->setBuilderOptimizationLevel(level);
  if (half) config->setFlag(trt::BuilderFlag::kFP16);
  if (!half) config->clearFlag(trt::BuilderFlag::kTF32);
  // Without cuBLAS and cuDNN, which would be those of another CUDA than PyTorch's.
  config->setTacticSources(1U << static_cast<int>(trt::TacticSource::kEDGE_MASK_CONVOLUTIONS) |
                           1U << static_cast<int>(trt::TacticSource::kJIT_CONVOLUTIONS));
  trt::ITensor* const images = network->getInput(0);
  trt::Dims dims = images->getDimensions();
  if (dims.d[0] < 0) {
    dims.d[0] = batch;
    trt::IOptimizationProfile* const profile = builder->createOptimizationProfile();
    for (auto which : {trt::OptProfileSelector::kMIN, trt::OptProfileSelector::kOPT, trt::OptProfileSelector::kMAX}) {
      profile->setDimensions(images->getName(), which, dims);
    }
    config->addOptimizationProfile(profile);
  }
  std::unique_ptr<trt::IHostMemory> engine(need(builder->buildSerializedNetwork(*network, *config), "engine"));
  std::ofstream file(out, std::ios::binary);
  file.write(static_cast<char const*>(engine->data()), engine->size());
  if (!file.flush()) fail(std::string("can't write ") + out);
  std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - begin;
  int const number = getInferLibVersion();  // 8600 is 8.6.0
  std::printf("{\"tensorrt\": \"%d.%d.%d\", \"build_s\": %.1f, \"mb\": %.1f}\n", number / 1000, number / 100 % 10,
              number % 100, seconds.count(), engine->size() / 1e6);
  std::fflush(stdout);
  std::_Exit(0);  // TensorRT 8.6 crashes as it frees what it built with
}

struct Buffer {
  void* data = nullptr;
  size_t bytes = sizeof(float);
};

// An engine captured as a CUDA graph with its buffers, which live as long as the process.
struct Execution {
  std::unique_ptr<trt::IRuntime> runtime;
  std::unique_ptr<trt::ICudaEngine> engine;
  std::unique_ptr<trt::IExecutionContext> context;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t graph = nullptr;
  size_t nodes = 0;
  Buffer images;
  std::map<std::string, Buffer> outputs;

  explicit Execution(char const* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(std::string("can't read ") + path);
    std::vector<char> const bytes{std::istreambuf_iterator<char>(file), {}};
    runtime.reset(need(trt::createInferRuntime(logger), "runtime"));
    engine.reset(need(runtime->deserializeCudaEngine(bytes.data(), bytes.size()), "engine"));
    context.reset(need(engine->createExecutionContext(), "context"));
    check(cudaStreamCreate(&stream));
    for (auto mode : {trt::TensorIOMode::kINPUT, trt::TensorIOMode::kOUTPUT}) {  // outputs' shapes follow from inputs'
      for (int i = 0; i < engine->getNbIOTensors(); ++i) {
        char const* const name = engine->getIOTensorName(i);
        if (engine->getTensorIOMode(name) == mode) allocate(name, mode == trt::TensorIOMode::kINPUT);
      }
    }
    if (!context->enqueueV3(stream)) fail("TensorRT can't run the engine");  // at first, as it may allocate
    check(cudaStreamSynchronize(stream));
    cudaGraph_t recorded = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (!context->enqueueV3(stream)) fail("TensorRT can't be captured");
    check(cudaStreamEndCapture(stream, &recorded));
    check(cudaGraphGetNodes(recorded, nullptr, &nodes));
    check(cudaGraphInstantiate(&graph, recorded, 0));
  }

  void allocate(char const* name, bool is_input) {
    auto const largest = trt::OptProfileSelector::kMAX;
    trt::Dims dims = engine->getTensorShape(name);
    if (dims.d[0] < 0) dims = is_input ? engine->getProfileShape(name, 0, largest) : context->getTensorShape(name);
    if (is_input) context->setInputShape(name, dims);
    if (engine->getTensorDataType(name) != trt::DataType::kFLOAT) fail(std::string(name) + " is not float32");
    Buffer& buffer = is_input ? images : outputs[name];
    for (int i = 0; i < dims.nbDims; ++i) buffer.bytes *= dims.d[i];
    check(cudaMalloc(&buffer.data, buffer.bytes));
    context->setTensorAddress(name, buffer.data);
  }
};

void time(char const* path, int runs) {
  Execution run(path);
  Buffer const images = run.images;
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  std::vector<float> values(images.bytes / sizeof(float));
  std::vector<void*> inputs(kInputs);
  for (void*& input : inputs) {
    std::generate(values.begin(), values.end(), [&] { return normal(generator); });
    check(cudaMalloc(&input, images.bytes));
    check(cudaMemcpy(input, values.data(), images.bytes, cudaMemcpyHostToDevice));
  }
  std::vector<cudaEvent_t> begins(kWarmUps + runs), ends(kWarmUps + runs);
  for (int i = 0; i < kWarmUps + runs; ++i) {
    check(cudaEventCreate(&begins[i]));
    check(cudaEventCreate(&ends[i]));
    check(cudaMemcpyAsync(images.data, inputs[i % kInputs], images.bytes, cudaMemcpyDeviceToDevice, run.stream));
    check(cudaEventRecord(begins[i], run.stream));
    check(cudaGraphLaunch(run.graph, run.stream));
    check(cudaEventRecord(ends[i], run.stream));
  }
  check(cudaStreamSynchronize(run.stream));
  std::vector<float> ms(runs);
  for (int i = 0; i < runs; ++i) check(cudaEventElapsedTime(&ms[i], begins[kWarmUps + i], ends[kWarmUps + i]));
  std::sort(ms.begin(), ms.end());
  auto const at = [&](double share) { return ms[static_cast<size_t>(share * (runs - 1) + 0.5)]; };
  std::printf("{\"p5_ms\": %.4f, \"p50_ms\": %.4f, \"p95_ms\": %.4f, \"nodes\": %zu}\n", at(0.05), at(0.5), at(0.95),
              run.nodes);
}

void detect(char const* path) {
  Execution run(path);
  std::vector<char> images(run.images.bytes), output;
  while (std::fread(images.data(), 1, images.size(), stdin) == images.size()) {
    check(cudaMemcpyAsync(run.images.data, images.data(), images.size(), cudaMemcpyHostToDevice, run.stream));
    check(cudaGraphLaunch(run.graph, run.stream));
    check(cudaStreamSynchronize(run.stream));
    for (auto const& [name, buffer] : run.outputs) {
      output.resize(buffer.bytes);
      check(cudaMemcpy(output.data(), buffer.data, buffer.bytes, cudaMemcpyDeviceToHost));
      if (std::fwrite(output.data(), 1, output.size(), stdout) != output.size()) fail("can't write outputs");
    }
    std::fflush(stdout);
  }
}
}  // namespace

int main(int count, char** given) {
  std::string const mode = count > 1 ? given[1] : "";
  if (mode == "build" && count == 7) {
    build(given[2], given[3], std::atoi(given[4]), std::atoi(given[5]), given[6] == std::string("fp16"));
  } else if (mode == "time" && count == 4 && std::atoi(given[3]) > 0) {
    time(given[2], std::atoi(given[3]));
  } else if (mode == "detect" && count == 3) {
    detect(given[2]);
  } else {
    fail("usage: bench build MODEL.onnx ENGINE BATCH LEVEL fp16|fp32 | time ENGINE RUNS | detect ENGINE");
  }
}
