// Runs one module of an artifact without Python, on the CPU or a CUDA GPU.
//
//   host MODULE_DIR cpu|cuda INPUT.npy OUTPUT.npy     e.g.  host resnet18.artifact/sm_90 cuda x.npy y.npy
//
// MODULE_DIR holds module.so and tensor-cache.json; TVM's runtime reads the parameters from it.
// Input and output are float32 in C order. Build: see CMakeLists.txt here.
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;
using Global = ffi::Function;

struct Npy {
  std::vector<int64_t> shape;
  std::vector<char> data;
};

Npy ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string all((std::istreambuf_iterator<char>(file)), {});
  if (all.substr(0, 7) != "\x93NUMPY\x01") throw std::runtime_error(path + " is no .npy file of version 1");
  size_t begin = 10 + static_cast<uint8_t>(all[8]) + 256 * static_cast<uint8_t>(all[9]);
  std::string header = all.substr(10, begin - 10);
  if (header.find("'<f4'") == std::string::npos || header.find("'fortran_order': False") == std::string::npos)
    throw std::runtime_error(path + " is not float32 in C order");
  Npy npy{{}, {all.begin() + begin, all.end()}};
  std::string dims = header.substr(header.find('(') + 1, header.find(')') - header.find('(') - 1);
  std::regex number("\\d+");
  for (std::sregex_iterator it(dims.begin(), dims.end(), number), end; it != end; ++it)
    npy.shape.push_back(std::stoll(it->str()));
  return npy;
}

void WriteNpy(const std::string& path, const Npy& npy) {
  std::ostringstream header;
  header << "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (int64_t d : npy.shape) header << d << ", ";
  header << "), }";
  std::string text = header.str();
  text += std::string(63 - (10 + text.size()) % 64, ' ') + '\n';
  const char lead[] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, char(text.size() % 256), char(text.size() / 256)};
  std::ofstream file(path, std::ios::binary);
  file.write(lead, sizeof(lead)).write(text.data(), text.size()).write(npy.data.data(), npy.data.size());
  if (!file) throw std::runtime_error("cannot write " + path);
}

int Run(const std::string& dir, bool cuda, const std::string& input, const std::string& output) {
  if (cuda && !dlopen("libtvm_runtime_cuda.so", RTLD_NOW | RTLD_GLOBAL)) throw std::runtime_error(dlerror());
  DLDevice device{cuda ? kDLCUDA : kDLCPU, 0};
  int type = device.device_type, pooled = 2;

  ffi::Module vm = (*ffi::Module::LoadFromFile(dir + "/module.so")->GetFunction("vm_load_executable", true))()
                       .cast<ffi::Module>();
  (*vm->GetFunction("vm_initialization", true))(type, 0, pooled, static_cast<int>(kDLCPU), 0, pooled);
  Global::GetGlobalRequired("vm.builtin.tensor_cache.load")(dir, type, 0);
  ffi::Any params = Global::GetGlobalRequired("vm.builtin.param_array_from_cache")("param", -1);  // all

  Npy npy = ReadNpy(input);
  ffi::Tensor x = Global::GetGlobalRequired("runtime.TVMTensorAllocWithScope")(
                      ffi::Shape(npy.shape), DLDataType{kDLFloat, 32, 1}, device, nullptr)
                      .cast<ffi::Tensor>();
  Global::GetGlobalRequired("runtime.TVMTensorCopyFromBytes")(x, static_cast<void*>(npy.data.data()), npy.data.size());
  ffi::Tensor y = (*vm->GetFunction("main", true))(x, params).cast<ffi::Tensor>();

  Npy result{{y.shape().begin(), y.shape().end()}, std::vector<char>(ffi::GetDataSize(*y.operator->()))};
  Global::GetGlobalRequired("runtime.TVMTensorCopyToBytes")(y, static_cast<void*>(result.data.data()), result.data.size());
  WriteNpy(output, result);
  return 0;
}

int main(int argc, char** argv) {
  std::string kind = argc == 5 ? argv[2] : "";
  if (kind != "cpu" && kind != "cuda") {
    std::cerr << "usage: host MODULE_DIR cpu|cuda INPUT.npy OUTPUT.npy\n";
    return 2;
  }
  try {
    return Run(argv[1], kind == "cuda", argv[3], argv[4]);
  } catch (const std::exception& error) {  // tvm::ffi::Error is one
    std::cerr << "host: " << error.what() << "\n";
    return 1;
  }
}
