// train.cpp: learns a small head on the CPU: log-probabilities forward, the weight's gradient backward.
#include <flp.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t N = 8, D = 16, V = 32;
constexpr int STEPS = 20;
constexpr float RATE = 0.5f;

void check(flp_status status) {
  if (status != FLP_OK) throw std::runtime_error(std::string(flp_status_name(status)) + ": " + flp_error_detail());
}

struct destroy {
  void operator()(flp_plan *plan) const {
    flp_plan_destroy(plan);
  }
};
using plan_ptr = std::unique_ptr<flp_plan, destroy>;

plan_ptr make_plan() {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = V;
  spec.hidden = D;
  spec.dtype = FLP_DTYPE_FP32;
  spec.grads = FLP_GRAD_WEIGHT;
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST;  // without this line: GPU 0, and pointers of the device
  flp_plan *plan = nullptr;
  check(flp_plan_create(&spec, &options, &plan));
  return plan_ptr(plan);
}

// Workspace of any pass over N rows, aligned as flp_args wants it.
class workspace {
 public:
  explicit workspace(const flp_plan *plan) {
    for (flp_pass pass : {FLP_PASS_FORWARD, FLP_PASS_BACKWARD}) {
      std::size_t bytes = 0;
      check(flp_plan_workspace(plan, pass, N, 0, &bytes));
      if (bytes > bytes_) bytes_ = bytes;
    }
    memory_.reset(std::aligned_alloc(256, (bytes_ + 256) / 256 * 256));
    if (!memory_) throw std::bad_alloc();
  }
  void lend(flp_args &args) const {
    args.workspace = memory_.get();
    args.workspace_bytes = bytes_;
  }

 private:
  struct release {
    void operator()(void *memory) const {
      std::free(memory);
    }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<void, release> memory_;
};

void train() {
  std::vector<float> hidden(N * D), weight(V * D), grad(V * D), logprob(N), stats(4 * N);
  const std::vector<float> upstream(N, -1.0f / N);  // of the mean of -logprob
  std::vector<std::int64_t> target(N);
  for (std::size_t i = 0; i < hidden.size(); i++) hidden[i] = static_cast<float>(i * 37 % 23) / 12 - 1;
  for (std::size_t i = 0; i < target.size(); i++) target[i] = static_cast<std::int64_t>(i) * 7 % V;

  const plan_ptr plan = make_plan();
  const workspace memory(plan.get());
  flp_args args = FLP_ARGS_INIT;
  args.n = N;
  args.hidden = hidden.data();
  args.weight = weight.data();
  args.target = target.data();
  args.logprob = logprob.data();
  args.stats = stats.data();  // forward writes, backward reads
  memory.lend(args);
  for (int step = 0; step < STEPS; step++) {
    args.pass = FLP_PASS_FORWARD;
    check(flp_execute(plan.get(), &args));
    float loss = 0;
    for (float value : logprob) loss -= value / N;
    if (step % 5 == 0 || step == STEPS - 1) std::cout << "step " << step << "  loss " << loss << '\n';

    flp_args back = args;
    back.pass = FLP_PASS_BACKWARD;
    back.logprob = nullptr;
    back.grad_logprob = upstream.data();
    back.grad_weight = grad.data();
    check(flp_execute(plan.get(), &back));
    for (std::size_t i = 0; i < weight.size(); i++) weight[i] -= RATE * grad[i];
  }
}

}  // namespace

int main() try {
  train();
  return 0;
} catch (const std::exception &error) {
  std::cerr << error.what() << '\n';
  return 1;
}
