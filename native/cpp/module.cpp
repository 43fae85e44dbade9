// The door: what Python hands over is checked here, in `checks.h` and in `door.h`, before any pointer is used, and
// nowhere behind it.
#include "door.h"
#include "mixture.h"

using namespace pomona;

namespace {

// Rows that clients mix: those of tables, one after the other; each client's by their numbers (n, N), or for all clients
// the same.
class Copies {
 public:
  Copies(std::vector<Spaced> tables, std::optional<IntegerTable> index) : tables_(std::move(tables)) {
    for (const Spaced& table : tables_) {
      require(joined(table), "a row's numbers must stand together");
      require(table.shape(1) == tables_[0].shape(1), "copies must have rows of one length");
      for (size_t j = 0; j < table.shape(0); ++j) rows_.push_back(at(table, static_cast<ptrdiff_t>(j)));
    }
    require(!rows_.empty(), "copies must have a row");
    others_ = static_cast<ptrdiff_t>(index ? index->shape(1) : rows_.size());
    if (!index) return;
    clients_ = static_cast<ptrdiff_t>(index->shape(0));
    std::vector<const float*> rows;
    for (size_t k = 0; k < index->size(); ++k) {
      const int64_t row = index->data()[k];
      require(0 <= row && row < static_cast<int64_t>(rows_.size()), "index: no such row among the copies");
      rows.push_back(rows_[static_cast<size_t>(row)]);
    }
    rows_ = std::move(rows);
  }

  // With clients' own rows, checked against each other: own (n,), cores (n, d).
  Bank with(const Integers64& own, const Table& cores) const {
    const auto clients = static_cast<ptrdiff_t>(cores.shape(0)), d = static_cast<ptrdiff_t>(cores.shape(1));
    times(clients, others_, "clients");
    require(clients_ < 0 || clients <= clients_, "copies must have rows for each client");
    require(d >= 1 && static_cast<ptrdiff_t>(tables_[0].shape(1)) == d, "copies and cores must have rows of one length");
    require(static_cast<ptrdiff_t>(own.size()) == clients, "own must have a place for each client");
    for (ptrdiff_t i = 0; i < clients; ++i)
      require(0 <= own.data()[i] && own.data()[i] < others_, "own: no such row among the copies");
    return {clients, others_, d, rows_.data(), clients_ < 0, cores.data(), own.data()};
  }

  void require_apart(std::initializer_list<Span> written) const {
    for (const Spaced& table : tables_) apart(written, {span("copies", table)});
  }

 private:
  std::vector<Spaced> tables_;
  std::vector<const float*> rows_;
  ptrdiff_t others_ = 0, clients_ = -1;
};

template <typename T>
void require_numbers(const char* name, const Bank& rows, const T& table) {
  require(has(table, rows.clients, rows.rows), std::string(name) + " must have a number for each client and row");
}

template <typename T>
void require_rows(const char* name, const Bank& rows, const T& table) {
  require(has(table, rows.clients, rows.d), std::string(name) + " must have a row for each client");
}

void mixed(FloatTable weights, Integers64 own, const Copies& copies, Table cores, Table made) {
  const Bank rows = copies.with(own, cores);
  require_numbers("weights", rows, weights);
  require_rows("made", rows, made);
  copies.require_apart({span("made", made)});
  apart({span("made", made)}, {span("weights", weights), span("own", own), span("cores", cores)});
  mix(rows, weights.data(), made.data());
}

void compared(Integers64 own, const Copies& copies, Table cores, FloatTable gradients, Table slopes) {
  const Bank rows = copies.with(own, cores);
  require_rows("gradients", rows, gradients);
  require_numbers("slopes", rows, slopes);
  copies.require_apart({span("slopes", slopes)});
  apart({span("slopes", slopes)}, {span("own", own), span("cores", cores), span("gradients", gradients)});
  slopes_of(rows, gradients.data(), slopes.data(), [](ptrdiff_t, ptrdiff_t) {});
}

void moved(FloatTable weights, Integers64 own, const Copies& copies, Table cores, FloatTable gradients, Table moments,
           Table slopes, float lr, float momentum, float decay) {
  const Bank rows = copies.with(own, cores);
  const bool remembers = momentum != 0;
  require_numbers("weights", rows, weights);
  require_rows("gradients", rows, gradients);
  if (remembers) require_rows("moments", rows, moments);
  require_numbers("slopes", rows, slopes);
  const Span memory = remembers ? span("moments", moments) : Span{};
  copies.require_apart({span("cores", cores), memory, span("slopes", slopes)});
  apart({span("cores", cores), memory, span("slopes", slopes)},
        {span("weights", weights), span("own", own), span("gradients", gradients)});
  move(rows, gradients.data(), weights.data(),
       {nullptr, remembers ? moments.data() : nullptr, true, lr, momentum, decay}, slopes.data());
}

}  // namespace

NB_MODULE(POMONA_MODULE, module) {
  using nb::arg;
  const auto exactly = [](const char* name) { return arg(name).noconvert(); };  // an array of this type, not a copy
  module.attr("BF16") = PAIRED == 2;
  nb::class_<Door>(module, "Network")
      .def(nb::init<ptrdiff_t, ptrdiff_t, ptrdiff_t>(), arg("height"), arg("width"), arg("channels"))
      .def("convolution", &Door::convolution, arg("outputs"), arg("kernel"), arg("stride"), arg("padding"),
           arg("window"), arg("hop"), arg("rectified"), arg("weight"), arg("bias"), arg("dense") = false, arg("patches") = false,
           arg("input") = -1)
      .def("linear", &Door::linear, arg("outputs"), arg("rectified"), arg("weight"), arg("bias"), arg("input") = -1)
      .def("pooling", &Door::pooling, arg("window"), arg("hop"), arg("padding"), arg("mean"), arg("counted"),
           arg("ceil"), arg("input") = -1)
      .def("normalisation", &Door::normalisation, arg("groups"), arg("eps"), arg("share"), arg("rectified"),
           arg("weight"), arg("bias"), arg("mean"), arg("variance"), arg("input") = -1)
      .def("sum", &Door::sum, arg("rectified"), arg("input"), arg("beside"))
      .def("dropout", &Door::dropout, arg("input") = -1)
      .def("activation", &Door::activation, arg("name"), arg("input") = -1)
      .def("embedding", &Door::embedding, arg("vocabulary"), arg("width"), arg("skipped"), arg("weight"))
      .def("shape", &Door::shape_of, arg("input"))
      .def_prop_ro("reached", &Door::reached)
      .def_prop_ro("most", &Door::most)
      .def("gradient", &Door::gradient, exactly("rows"), exactly("gradients"), exactly("x"), exactly("index"),
           arg("counts"), exactly("targets"), exactly("shift"), exactly("scale"), arg("bf16") = false, arg("skipped") = 0,
           exactly("masks").none() = nb::none())
      .def("step", &Door::step, exactly("rows"), exactly("moments"), exactly("x"), exactly("index"), arg("counts"),
           exactly("targets"), exactly("shift"), exactly("scale"), arg("bf16"), arg("lr"), arg("momentum"), arg("decay"), arg("pull"),
           exactly("centre").none(), exactly("constant").none(), arg("part"), arg("skipped"),
           exactly("masks").none() = nb::none())
      .def("outputs", &Door::outputs, exactly("rows"), exactly("made"), exactly("x"), exactly("index"),
           arg("counts"), exactly("shift"), exactly("scale"), arg("bf16") = false, arg("share") = 0.0f);
  nb::class_<Copies>(module, "Copies")
      .def(nb::init<std::vector<Spaced>, std::optional<IntegerTable>>(), exactly("tables"), exactly("index").none());
  module.def("mix", &mixed, exactly("weights"), exactly("own"), arg("copies"), exactly("cores"), exactly("made"));
  module.def("products", &compared, exactly("own"), arg("copies"), exactly("cores"), exactly("gradients"),
             exactly("slopes"));
  module.def("move", &moved, exactly("weights"), exactly("own"), arg("copies"), exactly("cores"),
             exactly("gradients"), exactly("moments"), exactly("slopes"), arg("lr"), arg("momentum"), arg("decay"));
}
