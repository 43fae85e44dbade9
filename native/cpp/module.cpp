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

// Where an argument lies.
struct Span {
  const char* name = "";
  uintptr_t at = 0;
  size_t bytes = 0;
};

template <typename T>
Span span(const char* name, const T& array) {
  return {name, reinterpret_cast<uintptr_t>(array.data()), array.nbytes()};
}

template <typename T>
Span span(const char* name, const std::optional<T>& array) {
  return array ? span(name, *array) : Span{};
}

// What is written shares memory with nothing else.
void apart(std::initializer_list<Span> written, std::initializer_list<Span> read) {
  const auto check = [](const Span& a, const Span& b) {
    if (a.bytes && b.bytes && a.at < b.at + b.bytes && b.at < a.at + a.bytes)
      refuse(std::string(a.name) + ", which is written, shares memory with " + b.name);
  };
  for (const Span* one = written.begin(); one != written.end(); ++one) {
    for (const Span* other = one + 1; other != written.end(); ++other) check(*one, *other);
    for (const Span& other : read) check(*one, other);
  }
}

// Whether a table has so many rows and columns.
template <typename T>
bool has(const T& table, ptrdiff_t rows, ptrdiff_t columns) {
  return static_cast<ptrdiff_t>(table.shape(0)) == rows && static_cast<ptrdiff_t>(table.shape(1)) == columns;
}

class Door {
 public:
  Door(ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels) : network_(shape(height, width, channels)) {}
  Door(const Door&) = delete;

  void convolution(ptrdiff_t outputs, Sizes kernel, Sizes stride, Sizes padding, Sizes window, Sizes hop,
                   bool rectified, ptrdiff_t weight, ptrdiff_t bias) {
    require(!flat_, "a convolution cannot follow a linear layer");
    const Geometry g{between(kernel, 1, 1024, "kernel"), between(stride, 1, 1024, "stride"),
                     between(padding, 0, 1024, "padding"), between(window, 1, 15, "window"),
                     between(hop, 1, 16, "hop")};
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
    grow(to.size());
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

  // Samples that a call takes at most.
  ptrdiff_t most() const { return MOST / largest_; }

  double gradient(Row row, Row target, Array x, Integers64 index, Integers64 targets, Floats shift, Floats scale,
                  bool pairs, ptrdiff_t skipped) {
    ready(row.size(), target.size());
    apart({span("target", target)}, {span("row", row), span("x", x), span("index", index), span("targets", targets),
                                     span("shift", shift), span("scale", scale)});
    below(skipped);
    return learn({row.data(), target.data()}, x, index, targets, shift, scale, pairs, skipped);
  }

  // `part`: the numbers of the row that take the step, from the first to before the last; moments are those of them.
  double step(Row row, Row moments, Array x, Integers64 index, Integers64 targets, Floats shift, Floats scale,
              bool pairs, float lr, float momentum, float decay, float pull, std::optional<Floats> centre,
              std::optional<Floats> constant, Sizes part, ptrdiff_t skipped) {
    const auto [begin, end] = part;
    const bool remembers = momentum != 0;
    ready(row.size(), row.size());
    below(skipped);
    require(0 <= begin && begin <= end && end <= static_cast<ptrdiff_t>(row.size()), "part must lie in the row");
    require(!remembers || static_cast<ptrdiff_t>(moments.size()) >= std::min(end, size_) - begin,
            "moments must have a number for each that takes the step");
    for (const auto& beside : {centre, constant})
      require(!beside || static_cast<ptrdiff_t>(beside->size()) >= size_,
              "a pull must have a number for each parameter");
    apart({span("row", row), remembers ? span("moments", moments) : Span{}},
          {span("x", x), span("index", index), span("targets", targets), span("shift", shift), span("scale", scale),
           span("centre", centre), span("constant", constant)});
    const Update update{row.data(), remembers ? moments.data() : nullptr, true, lr, momentum, decay, pull,
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
    apart({span("made", made)}, {span("row", row), span("x", x), span("index", index), span("shift", shift),
                                 span("scale", scale)});
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
    require(batch <= most(), "a layer would get more than 2^27 numbers; take fewer samples at a time");
    for (ptrdiff_t n = 0; n < batch; ++n)
      if (index.data()[n] < 0 || index.data()[n] >= count)
        refuse("index " + std::to_string(index.data()[n]) + " is none of " + std::to_string(count) + " samples");
    return {spread(shift, "shift"), spread(scale, "scale"), {x.data(), bytes, index.data(), nullptr, nullptr}};
  }

  std::vector<float> spread(const Floats& values, const char* name) const {
    const auto channels = static_cast<size_t>(network_.input().channels);
    require(values.size() == 1 || values.size() == channels,
            std::string(name) + " must have 1 number, or one a channel");
    return values.size() == 1 ? std::vector<float>(channels, values.data()[0])
                              : std::vector<float>(values.data(), values.data() + channels);
  }

  double learn(const Update& update, const Array& x, const Integers64& index, const Integers64& targets,
               const Floats& shift, const Floats& scale, bool pairs, ptrdiff_t skipped) {
    Taken taken = take(x, index, shift, scale);
    const auto batch = static_cast<ptrdiff_t>(index.size());
    require(batch >= 1, "a batch needs a sample");
    require(targets.size() == index.size(), "targets must have a number for each index");
    const ptrdiff_t classes = network_.reached().channels;
    for (ptrdiff_t n = 0; n < batch; ++n)
      if (targets.data()[n] < 0 || targets.data()[n] >= classes)
        refuse("target " + std::to_string(targets.data()[n]) + " is none of " + std::to_string(classes) + " classes");
    taken.samples.shift = taken.shift.data(), taken.samples.scale = taken.scale.data();
    return network_.learn(update, taken.samples, targets.data(), batch, pairs, static_cast<size_t>(skipped));
  }

  Network network_;
  ptrdiff_t size_ = 0, largest_ = 1;  // parameters of all layers; numbers of the largest map of a sample
  bool flat_ = false;
};

// Rows of clients, checked against each other: own (n,), copies (N, d) and cores (n, d).
Bank bank(const Integers64& own, const Spaced& copies, const Table& cores) {
  const auto clients = static_cast<ptrdiff_t>(cores.shape(0)), d = static_cast<ptrdiff_t>(cores.shape(1));
  const auto others = static_cast<ptrdiff_t>(copies.shape(0));
  times(clients, others, "clients");
  require(d >= 1 && static_cast<ptrdiff_t>(copies.shape(1)) == d, "copies and cores must have rows of one length");
  require((d == 1 || copies.stride(1) == 1) && copies.stride(0) >= 0, "a row's numbers must stand together");
  require(static_cast<ptrdiff_t>(own.size()) == clients, "own must have a place for each client");
  for (ptrdiff_t i = 0; i < clients; ++i)
    require(0 <= own.data()[i] && own.data()[i] < others, "own: no such row among the copies");
  return {clients, others, d, copies.data(), copies.stride(0), cores.data(), own.data()};
}

template <typename T>
void require_numbers(const char* name, const Bank& rows, const T& table) {
  require(has(table, rows.clients, rows.rows), std::string(name) + " must have a number for each client and row");
}

template <typename T>
void require_rows(const char* name, const Bank& rows, const T& table) {
  require(has(table, rows.clients, rows.d), std::string(name) + " must have a row for each client");
}

// From the first copy's first number to the last one's last; what lies between them counts as well.
Span span(const Bank& rows) {
  const ptrdiff_t numbers = (rows.rows - 1) * rows.apart + rows.d;
  return {"copies", reinterpret_cast<uintptr_t>(rows.copies), static_cast<size_t>(numbers) * sizeof(float)};
}

void mixed(FloatTable weights, Integers64 own, Spaced copies, Table cores, Table made) {
  const Bank rows = bank(own, copies, cores);
  require_numbers("weights", rows, weights);
  require_rows("made", rows, made);
  apart({span("made", made)}, {span("weights", weights), span("own", own), span(rows), span("cores", cores)});
  mix(rows, weights.data(), made.data());
}

void compared(Integers64 own, Spaced copies, Table cores, FloatTable gradients, Table slopes) {
  const Bank rows = bank(own, copies, cores);
  require_rows("gradients", rows, gradients);
  require_numbers("slopes", rows, slopes);
  apart({span("slopes", slopes)},
        {span("own", own), span(rows), span("cores", cores), span("gradients", gradients)});
  slopes_of(rows, gradients.data(), slopes.data(), [](ptrdiff_t, ptrdiff_t) {});
}

void moved(FloatTable weights, Integers64 own, Spaced copies, Table cores, FloatTable gradients, Table moments,
           Table slopes, float lr, float momentum, float decay) {
  const Bank rows = bank(own, copies, cores);
  const bool remembers = momentum != 0;
  require_numbers("weights", rows, weights);
  require_rows("gradients", rows, gradients);
  if (remembers) require_rows("moments", rows, moments);
  require_numbers("slopes", rows, slopes);
  apart({span("cores", cores), remembers ? span("moments", moments) : Span{}, span("slopes", slopes)},
        {span("weights", weights), span("own", own), span(rows), span("gradients", gradients)});
  move(rows, gradients.data(), weights.data(),
       {nullptr, remembers ? moments.data() : nullptr, true, lr, momentum, decay}, slopes.data());
}

}  // namespace

NB_MODULE(POMONA_MODULE, module) {
  using nb::arg;
  const auto exactly = [](const char* name) { return arg(name).noconvert(); };  // an array of this type, not a copy
#if defined(__AVX512BF16__)
  module.attr("BF16") = true;
#else
  module.attr("BF16") = false;
#endif
  nb::class_<Door>(module, "Network")
      .def(nb::init<ptrdiff_t, ptrdiff_t, ptrdiff_t>(), arg("height"), arg("width"), arg("channels"))
      .def("convolution", &Door::convolution, arg("outputs"), arg("kernel"), arg("stride"), arg("padding"),
           arg("window"), arg("hop"), arg("rectified"), arg("weight"), arg("bias"))
      .def("linear", &Door::linear, arg("outputs"), arg("rectified"), arg("weight"), arg("bias"))
      .def_prop_ro("reached", &Door::reached)
      .def_prop_ro("most", &Door::most)
      .def("gradient", &Door::gradient, exactly("row"), exactly("target"), exactly("x"), exactly("index"),
           exactly("targets"), exactly("shift"), exactly("scale"), arg("bf16") = false, arg("skipped") = 0)
      .def("step", &Door::step, exactly("row"), exactly("moments"), exactly("x"), exactly("index"), exactly("targets"),
           exactly("shift"), exactly("scale"), arg("bf16"), arg("lr"), arg("momentum"), arg("decay"), arg("pull"),
           exactly("centre").none(), exactly("constant").none(), arg("part"), arg("skipped"))
      .def("outputs", &Door::outputs, exactly("row"), exactly("made"), exactly("x"), exactly("index"),
           exactly("shift"), exactly("scale"), arg("bf16") = false);
  module.def("mix", &mixed, exactly("weights"), exactly("own"), exactly("copies"), exactly("cores"), exactly("made"));
  module.def("products", &compared, exactly("own"), exactly("copies"), exactly("cores"), exactly("gradients"),
             exactly("slopes"));
  module.def("move", &moved, exactly("weights"), exactly("own"), exactly("copies"), exactly("cores"),
             exactly("gradients"), exactly("moments"), exactly("slopes"), arg("lr"), arg("momentum"), arg("decay"));
}
