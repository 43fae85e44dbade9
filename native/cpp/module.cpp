// The door: what Python hands over is checked here, before any pointer is used, and nowhere behind it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <stdexcept>
#include <string>

#include "mixture.h"
#include "network.h"

namespace nb = nanobind;
using namespace pomona;

namespace {

using Sizes = std::pair<ptrdiff_t, ptrdiff_t>;
using Row = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers64 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Spaced = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;  // rows that may be one
using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

constexpr ptrdiff_t MOST = ptrdiff_t{1} << 27;  // numbers of one map, one layer or one batch: 512 MiB

[[noreturn]] void refuse(const std::string& why) { throw nb::value_error(why.c_str()); }

void require(bool fits, const std::string& why) {
  if (!fits) refuse(why);
}

Pair2 between(Sizes sizes, ptrdiff_t least, ptrdiff_t most, const char* name) {
  const auto [y, x] = sizes;
  require(least <= y && y <= most && least <= x && x <= most,
          std::string(name) + " must lie between " + std::to_string(least) + " and " + std::to_string(most));
  return {y, x};
}

// a * b, unless that is more than MOST.
ptrdiff_t times(ptrdiff_t a, ptrdiff_t b, const char* name) {
  require(a >= 1 && b >= 1 && a <= MOST / b, std::string(name) + " must be at least 1, and not above 2^27 numbers");
  return a * b;
}

class Door {
 public:
  Door(ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels) : network_(shape(height, width, channels)) {}
  Door(const Door&) = delete;

  void convolution(ptrdiff_t outputs, Sizes kernel, Sizes stride, Sizes padding, Sizes window, Sizes hop, bool rectified, ptrdiff_t weight, ptrdiff_t bias) {
    require(!flat_, "a convolution cannot follow a linear layer");
    const Geometry g{between(kernel, 1, 1024, "kernel"), between(stride, 1, 1024, "stride"),
                     between(padding, 0, 1024, "padding"), between(window, 1, 15, "window"), between(hop, 1, 16, "hop")};
    const Shape from = network_.reached();
    const ptrdiff_t taps = times(times(g.kernel.y, g.kernel.x, "kernel"), from.channels, "kernel");
    const auto made = [&](ptrdiff_t length, ptrdiff_t Pair2::*axis) {
      const ptrdiff_t room = length + 2 * g.padding.*axis - g.kernel.*axis;
      require(room >= 0, "the kernel is larger than the padded image");
      require(room / (g.stride.*axis) + 1 >= g.window.*axis, "the window is larger than what the convolution makes");
      return room / (g.stride.*axis) + 1;
    };
    require(outputs >= 1 && outputs <= MOST, "outputs must lie between 1 and 2^27");
    const ptrdiff_t places = times(made(from.height, &Pair2::y), made(from.width, &Pair2::x), "maps");
    times(places, whole(taps), "patches");
    times(places, whole(outputs), "maps");
    grow(times(times(from.height + 2 * g.padding.y, from.width + 2 * g.padding.x, "image"), from.channels, "image"));
    times(times(outputs, g.kernel.y, "weights"), whole(g.kernel.x * from.channels), "weights");
    own(weight, times(outputs, taps, "weights"), bias, outputs);
    Convolution layer(from, outputs, g, rectified, weight, bias);
    const Shape to = layer.to();
    network_.add(to, g.padding, std::move(layer));
  }

  void linear(ptrdiff_t outputs, bool rectified, ptrdiff_t weight, ptrdiff_t bias) {
    const Shape from = network_.reached();
    own(weight, times(outputs, from.size(), "weights"), bias, outputs);
    grow(from.size());
    grow(outputs);
    network_.add({1, 1, outputs}, {0, 0}, Linear(from, outputs, rectified, weight, bias));
    flat_ = true;
  }

  std::tuple<ptrdiff_t, ptrdiff_t, ptrdiff_t> reached() const {
    const Shape to = network_.reached();
    return {to.height, to.width, to.channels};
  }

  double gradient(Row row, Row target, Array x, Integers64 index, Integers64 targets, Floats shift, Floats scale,
                  bool pairs, ptrdiff_t skipped) {
    ready(row.size(), target.size());
    below(skipped);
    return learn({row.data(), target.data()}, x, index, targets, shift, scale, pairs, skipped);
  }

  // `part`: the numbers of the row that take the step, from the first to before the last; moments are those of them.
  double step(Row row, Row moments, Array x, Integers64 index, Integers64 targets, Floats shift, Floats scale,
              bool pairs, float lr, float momentum, float decay, float pull, std::optional<Floats> centre,
              std::optional<Floats> constant, Sizes part, ptrdiff_t skipped) {
    const auto [begin, end] = part;
    ready(row.size(), row.size());
    below(skipped);
    require(0 <= begin && begin <= end && end <= static_cast<ptrdiff_t>(row.size()), "part must lie in the row");
    require(momentum == 0 || static_cast<ptrdiff_t>(moments.size()) >= std::min(end, size_) - begin,
            "moments must have a number for each that takes the step");
    for (const auto& beside : {centre, constant})
      require(!beside || static_cast<ptrdiff_t>(beside->size()) >= size_, "a pull must have a number for each parameter");
    const Update update{row.data(), momentum != 0 ? moments.data() : nullptr, true, lr, momentum, decay, pull,
                        centre ? centre->data() : nullptr, constant ? constant->data() : nullptr, begin, end};
    return learn(update, x, index, targets, shift, scale, pairs, skipped);
  }

  void outputs(Row row, Table made, Array x, Integers64 index, Floats shift, Floats scale, bool pairs) {
    require(network_.layers() > 0, "a network needs a layer");
    require(static_cast<ptrdiff_t>(row.size()) >= size_, "the row has fewer numbers than the layers have parameters");
    const auto batch = static_cast<ptrdiff_t>(index.size()), width = network_.reached().size();
    require(static_cast<ptrdiff_t>(made.shape(0)) == batch && static_cast<ptrdiff_t>(made.shape(1)) == width,
            "made must have a row for each index, and a column for each output");
    Taken taken = take(x, index, shift, scale);
    if (!batch) return;
    taken.samples.shift = taken.shift.data(), taken.samples.scale = taken.scale.data();
    Maps& logits = network_.forward(row.data(), taken.samples, batch, pairs, false);
    for (ptrdiff_t n = 0; n < batch; ++n)
      std::memcpy(made.data() + n * width, logits.values(n), static_cast<size_t>(width) * sizeof(float));
  }

 private:
  void below(ptrdiff_t skipped) const {
    require(0 <= skipped && skipped < static_cast<ptrdiff_t>(network_.layers()), "skipped: no layer would be left");
  }

  struct Taken {
    std::vector<float> shift, scale;
    Samples samples;
  };

  static Shape shape(ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels) {
    times(times(height, width, "image"), channels, "image");
    return {height, width, channels};
  }

  void grow(ptrdiff_t numbers) { largest_ = std::max(largest_, numbers); }

  // Parameters' places in a row: they must not overlap, and the row must be long enough, which `ready` sees to.
  void own(ptrdiff_t weight, ptrdiff_t weights, ptrdiff_t bias, ptrdiff_t biases) {
    require(weight >= size_ && weight <= MOST, "weight must begin behind all parameters so far");
    size_ = weight + weights;
    require(bias == -1 || (bias >= size_ && bias <= 2 * MOST), "bias must begin behind the weight, or be -1");
    if (bias != -1) size_ = bias + biases;
  }

  void ready(size_t row, size_t target) const {
    require(flat_, "the last layer must be linear");
    require(static_cast<ptrdiff_t>(row) >= size_ && static_cast<ptrdiff_t>(target) >= size_,
            "a row has fewer numbers than the layers have parameters (" + std::to_string(size_) + ")");
  }

  Taken take(const Array& x, const Integers64& index, const Floats& shift, const Floats& scale) const {
    const Shape input = network_.input();
    const bool bytes = x.dtype() == nb::dtype<uint8_t>();
    require(bytes || x.dtype() == nb::dtype<float>(), "samples must be uint8 or float32");
    const bool images = x.ndim() == 4 && static_cast<ptrdiff_t>(x.shape(1)) == input.height &&
                        static_cast<ptrdiff_t>(x.shape(2)) == input.width &&
                        static_cast<ptrdiff_t>(x.shape(3)) == input.channels;
    const bool vectors = x.ndim() == 2 && input.height == 1 && input.width == 1 &&
                         static_cast<ptrdiff_t>(x.shape(1)) == input.channels;
    require(images || vectors, "samples do not have the network's shape");
    const auto batch = static_cast<ptrdiff_t>(index.size()), count = static_cast<ptrdiff_t>(x.shape(0));
    require(batch <= MOST / largest_, "a layer would get more than 2^27 numbers; take fewer samples at a time");
    for (ptrdiff_t n = 0; n < batch; ++n)
      require(0 <= index.data()[n] && index.data()[n] < count,
              "index " + std::to_string(index.data()[n]) + " is none of " + std::to_string(count) + " samples");
    return {spread(shift, "shift"), spread(scale, "scale"), {x.data(), bytes, index.data(), nullptr, nullptr}};
  }

  std::vector<float> spread(const Floats& values, const char* name) const {
    const auto channels = static_cast<size_t>(network_.input().channels);
    require(values.size() == 1 || values.size() == channels, std::string(name) + " must have 1 number, or one a channel");
    return values.size() == 1 ? std::vector<float>(channels, values.data()[0])
                              : std::vector<float>(values.data(), values.data() + channels);
  }

  double learn(const Update& update, const Array& x, const Integers64& index, const Integers64& targets,
               const Floats& shift, const Floats& scale, bool pairs, ptrdiff_t skipped) {
    Taken taken = take(x, index, shift, scale);
    const auto batch = static_cast<ptrdiff_t>(index.size());
    require(batch >= 1, "a batch needs a sample");
    require(targets.size() == index.size(), "targets must have a number for each index");
    for (ptrdiff_t n = 0; n < batch; ++n)
      require(0 <= targets.data()[n] && targets.data()[n] < network_.reached().channels,
              "target " + std::to_string(targets.data()[n]) + " is none of " +
                  std::to_string(network_.reached().channels) + " classes");
    taken.samples.shift = taken.shift.data(), taken.samples.scale = taken.scale.data();
    return network_.learn(update, taken.samples, targets.data(), batch, pairs, static_cast<size_t>(skipped));
  }

  Network network_;
  ptrdiff_t size_ = 0, largest_ = 1;  // parameters of all layers; numbers of the largest map of a sample
  bool flat_ = false;
};

// Rows of clients, checked against each other: copies (N, d), cores (n, d), own (n,), tables (n, N) and rows (n, d).
Bank bank(const Spaced& copies, const Table& cores, const Integers64& own, std::initializer_list<size_t> tables,
          std::initializer_list<size_t> rows) {
  const auto clients = static_cast<ptrdiff_t>(cores.shape(0)), d = static_cast<ptrdiff_t>(cores.shape(1));
  const auto others = static_cast<ptrdiff_t>(copies.shape(0));
  times(times(clients, others, "clients"), 1, "clients");
  require(d >= 1 && static_cast<ptrdiff_t>(copies.shape(1)) == d, "copies and cores must have rows of one length");
  require((d == 1 || copies.stride(1) == 1) && copies.stride(0) >= 0, "a row's numbers must stand together");
  require(static_cast<ptrdiff_t>(own.size()) == clients, "own must have a place for each client");
  for (ptrdiff_t i = 0; i < clients; ++i)
    require(0 <= own.data()[i] && own.data()[i] < others, "own: no such row among the copies");
  require(tables.begin()[0] == cores.shape(0) && tables.begin()[1] == copies.shape(0), "a weight for each client and row");
  require(rows.begin()[0] == cores.shape(0) && rows.begin()[1] == cores.shape(1), "a row for each client");
  return {clients, others, d, copies.data(), copies.stride(0), cores.data(), own.data()};
}

void mixed(FloatTable weights, Integers64 own, Spaced copies, Table cores, Table made) {
  mix(bank(copies, cores, own, {weights.shape(0), weights.shape(1)}, {made.shape(0), made.shape(1)}), weights.data(),
      made.data());
}

void moved(FloatTable weights, Integers64 own, Spaced copies, Table cores, FloatTable gradients, Table moments,
           Table slopes, float lr, float momentum, float decay) {
  const Bank rows = bank(copies, cores, own, {weights.shape(0), weights.shape(1)}, {gradients.shape(0), gradients.shape(1)});
  bank(copies, cores, own, {slopes.shape(0), slopes.shape(1)}, {cores.shape(0), cores.shape(1)});
  require(momentum == 0 || (moments.shape(0) == cores.shape(0) && moments.shape(1) == cores.shape(1)),
          "moments must have a row for each client");
  move(rows, gradients.data(), weights.data(),
       {nullptr, momentum != 0 ? moments.data() : nullptr, true, lr, momentum, decay}, slopes.data());
}

}  // namespace

NB_MODULE(POMONA_MODULE, module) {
  module.attr("LANES") = LANES;
#if defined(__AVX512BF16__)
  module.attr("BF16") = true;
#else
  module.attr("BF16") = false;
#endif
  nb::class_<Door>(module, "Network")
      .def(nb::init<ptrdiff_t, ptrdiff_t, ptrdiff_t>(), nb::arg("height"), nb::arg("width"), nb::arg("channels"))
      .def("convolution", &Door::convolution, nb::arg("outputs"), nb::arg("kernel"), nb::arg("stride"),
           nb::arg("padding"), nb::arg("window"), nb::arg("hop"), nb::arg("rectified"),
           nb::arg("weight"), nb::arg("bias"))
      .def("linear", &Door::linear, nb::arg("outputs"), nb::arg("rectified"), nb::arg("weight"), nb::arg("bias"))
      .def("gradient", &Door::gradient, nb::arg("row").noconvert(), nb::arg("target").noconvert(), nb::arg("x").noconvert(), nb::arg("index").noconvert(),
           nb::arg("targets").noconvert(), nb::arg("shift").noconvert(), nb::arg("scale").noconvert(), nb::arg("bf16") = false, nb::arg("skipped") = 0)
      .def("step", &Door::step, nb::arg("row").noconvert(), nb::arg("moments").noconvert(), nb::arg("x").noconvert(), nb::arg("index").noconvert(), nb::arg("targets").noconvert(),
           nb::arg("shift").noconvert(), nb::arg("scale").noconvert(), nb::arg("bf16"), nb::arg("lr"), nb::arg("momentum"), nb::arg("decay"),
           nb::arg("pull"), nb::arg("centre").noconvert().none(), nb::arg("constant").noconvert().none(), nb::arg("part"), nb::arg("skipped"))
      .def_prop_ro("reached", &Door::reached)
      .def("outputs", &Door::outputs, nb::arg("row").noconvert(), nb::arg("made").noconvert(), nb::arg("x").noconvert(), nb::arg("index").noconvert(),
           nb::arg("shift").noconvert(), nb::arg("scale").noconvert(), nb::arg("bf16") = false);
  module.def("mix", &mixed, nb::arg("weights").noconvert(), nb::arg("own").noconvert(), nb::arg("copies").noconvert(), nb::arg("cores").noconvert(),
             nb::arg("made").noconvert());
  module.def("move", &moved, nb::arg("weights").noconvert(), nb::arg("own").noconvert(), nb::arg("copies").noconvert(), nb::arg("cores").noconvert(),
             nb::arg("gradients").noconvert(), nb::arg("moments").noconvert(), nb::arg("slopes").noconvert(), nb::arg("lr"), nb::arg("momentum"), nb::arg("decay"));
}
