// Runs one module of an artifact without Python, on the CPU or a CUDA GPU:
//   host MODULE_DIR cpu|cuda INPUT.npy OUTPUT.npy     (MODULE_DIR e.g. resnet18.artifact/sm_90)
// Of an artifact for a range of batches, MODULE_DIR-b<N> with the smallest N that holds the input.
// Input and output are float32 in C order. TVM's runtime reads the parameters through
// MODULE_DIR/tensor-cache.json. To build it, see CMakeLists.txt here.
#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ffi = tvm::ffi;
using ffi::Function;

struct Npy { std::vector<int64_t> shape; std::string data; };

Npy ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string all((std::istreambuf_iterator<char>(file)), {});
  if (all.compare(0, 7, "\x93NUMPY\x01") != 0) throw std::runtime_error(path + " is no .npy (version 1)");
  size_t end = 10 + uint8_t(all[8]) + 256 * uint8_t(all[9]);
  std::string header = all.substr(10, end - 10);
  if (header.find("'<f4'") == header.npos || header.find("order': False") == header.npos)
    throw std::runtime_error(path + " is not float32 in C order");
  Npy npy{{}, all.substr(end)};
  for (const char* at = &header[header.find('(') + 1]; *at && *at != ')'; ++at)
    if (std::isdigit(*at)) npy.shape.push_back(std::strtoll(at, const_cast<char**>(&at), 10)), --at;
  return npy;
}

void WriteNpy(const std::string& path, const Npy& npy) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (int64_t d : npy.shape) text += std::to_string(d) + ",";
  text += "), }";
  text += std::string(63 - (10 + text.size()) % 64, ' ') + '\n';  // numpy aligns the data to 64
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY\x01" << '\0' << char(text.size() % 256) << char(text.size() / 256) << text << npy.data;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

// The folder of the module that takes `rows` images, and how many it takes (0: its batch is fixed).
std::pair<std::string, int64_t> FindModule(const std::string& dir, int64_t rows) {
  namespace fs = std::filesystem;
  if (fs::exists(dir + "/module.so")) return {dir, 0};
  fs::path base = fs::path(dir).has_filename() ? fs::path(dir) : fs::path(dir).parent_path();
  std::string prefix = base.filename().string() + "-b";
  int64_t best = 0, largest = 0;
  fs::path parent = base.has_parent_path() ? base.parent_path() : fs::path(".");
  if (fs::is_directory(parent))
    for (const auto& entry : fs::directory_iterator(parent)) {
      std::string name = entry.path().filename().string();
      if (name.compare(0, prefix.size(), prefix) != 0) continue;
      int64_t size = std::strtoll(name.c_str() + prefix.size(), nullptr, 10);
      largest = std::max(largest, size);
      if (size >= rows && (best == 0 || size < best)) best = size;
    }
  if (largest == 0) throw std::runtime_error("there is no " + dir + "/module.so");
  if (rows < 1 || best == 0)
    throw std::runtime_error("a batch of " + std::to_string(rows) + ": this artifact takes up to " +
                             std::to_string(largest));
  return {(parent / (prefix + std::to_string(best))).string(), best};
}

void Run(const std::string& given, bool cuda, const std::string& input, const std::string& output) {
  // libtvm_runtime_cuda.so has a run path of its own, so ours finds libcudart for it beforehand
  for (const char* name : {"libcudart.so.13", "libtvm_runtime_cuda.so"})
    if (cuda && !dlopen(name, RTLD_NOW | RTLD_GLOBAL)) throw std::runtime_error(dlerror());
  Npy in = ReadNpy(input), out;
  int64_t rows = in.shape.empty() ? 0 : in.shape[0];
  auto [dir, size] = FindModule(given, rows);
  if (size) {  // what the bucket has more is padding; its outputs are cut off
    in.data.resize(in.data.size() / rows * size);
    in.shape[0] = size;
  }
  DLDevice device{cuda ? kDLCUDA : kDLCPU, 0};
  int kind = device.device_type, host = kDLCPU, pooled = 2;
  ffi::Module library = ffi::Module::LoadFromFile(dir + "/module.so");
  ffi::Module vm = (*library->GetFunction("vm_load_executable", true))().cast<ffi::Module>();
  (*vm->GetFunction("vm_initialization", true))(kind, 0, pooled, host, 0, pooled);
  Function::GetGlobalRequired("vm.builtin.tensor_cache.load")(dir, kind, 0);
  // A CUDA graph keeps the addresses of its first call: pass the same parameters each time.
  ffi::Any params = Function::GetGlobalRequired("vm.builtin.param_array_from_cache")("param", -1);

  ffi::Any x = Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope")(
      ffi::Shape(in.shape), DLDataType{kDLFloat, 32, 1}, device, nullptr);
  Function::GetGlobalRequired("runtime.TVMTensorCopyFromBytes")(x, (void*)in.data.data(), in.data.size());
  ffi::Tensor y = (*vm->GetFunction("main", true))(x, params).cast<ffi::Tensor>();
  if (y.dtype().code != kDLFloat || y.dtype().bits != 32)
    throw std::runtime_error("the output is not float32, which is all that this host writes");
  out.shape.assign(y.shape().begin(), y.shape().end());
  out.data.resize(ffi::GetDataSize(y));
  Function::GetGlobalRequired("runtime.TVMTensorCopyToBytes")(y, (void*)out.data.data(), out.data.size());
  if (size) {
    out.data.resize(out.data.size() / size * rows);
    out.shape[0] = rows;
  }
  WriteNpy(output, out);
}

int main(int argc, char** argv) {
  std::string device = argc == 5 ? argv[2] : "";
  if (device != "cpu" && device != "cuda")
    return std::cerr << "usage: host MODULE_DIR cpu|cuda INPUT.npy OUTPUT.npy\n", 2;
  try {
    Run(argv[1], device == "cuda", argv[3], argv[4]);
  } catch (const std::exception& error) {  // ffi::Error is one
    return std::cerr << "host: " << error.what() << "\n", 1;
  }
}
