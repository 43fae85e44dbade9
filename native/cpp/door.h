// A network as Python builds and calls it.
#pragma once

#include "checks.h"
#include "network.h"

namespace pomona {

class Door {
 public:
  Door(ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels) : network_(shape(height, width, channels)) {}
  Door(const Door&) = delete;

  // Of all layers, `input` is the number of the layer whose values it reads, from 1 on, 0 the network's input, -1 what
  // was made last.

  // `dense`: gradients at the outputs are seldom zero. `patches`: weights are too many to stay in a cache.
  void convolution(ptrdiff_t outputs, Sizes kernel, Sizes stride, Sizes padding, Sizes window, Sizes hop,
                   bool rectified, ptrdiff_t weight, ptrdiff_t bias, bool dense, bool patches, ptrdiff_t input) {
    const Geometry g{between(kernel, 1, 1024, "kernel"), between(stride, 1, 1024, "stride"),
                     between(padding, 0, 1024, "padding"), between(window, 1, 15, "window"),
                     between(hop, 1, 16, "hop")};
    const size_t at = value(input);
    const Shape from = network_.shape(at);
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
    times(times(outputs, g.kernel.y, "weights"), whole(g.kernel.x * from.channels), "weights");
    own(weight, times(outputs, taps, "weights"), bias, outputs);
    const bool pooled = g.window.y * g.window.x * g.hop.y * g.hop.x > 1;
    require(!pooled || !(dense || patches), "pooling leaves few gradients, and follows no patches");
    if (patches) {
      Patches layer({from, g}, outputs, rectified, weight, bias);
      add(layer.to(), at, at, g.padding, std::move(layer));
    } else {
      Convolution layer(from, outputs, g, rectified, dense, weight, bias);
      add(layer.to(), at, at, g.padding, std::move(layer));
    }
  }

  void linear(ptrdiff_t outputs, bool rectified, ptrdiff_t weight, ptrdiff_t bias, ptrdiff_t input) {
    const size_t at = value(input);
    const Shape from = network_.shape(at);
    own(weight, times(outputs, from.size(), "weights"), bias, outputs);
    add({1, 1, outputs}, at, at, {0, 0}, Linear({from}, outputs, rectified, weight, bias));
  }

  // `mean`: of each window, not its largest number; `counted`: with the padding; `ceil`: a window may begin at the
  // edge that does not end inside.
  void pooling(Sizes window, Sizes hop, Sizes padding, bool mean, bool counted, bool ceil, ptrdiff_t input) {
    const size_t at = value(input);
    const Shape from = network_.shape(at);
    const Pair2 w = between(window, 1, MOST, "window"), h = between(hop, 1, MOST, "hop"),
                p = between(padding, 0, 1024, "padding");
    require(2 * p.y <= w.y && 2 * p.x <= w.x, "padding must not exceed half the window");
    require(!(mean && ceil), "a mean over windows that reach over the padding is not defined here");
    const auto made = [&](ptrdiff_t side, ptrdiff_t Pair2::*axis) {
      const ptrdiff_t room = side + 2 * p.*axis - w.*axis + (ceil ? h.*axis - 1 : 0);
      require(room >= 0, "the window is larger than the image");
      const ptrdiff_t last = room / (h.*axis) * (h.*axis);
      return room / (h.*axis) + (last < side + p.*axis ? 1 : 0);
    };
    const Shape to{made(from.height, &Pair2::y), made(from.width, &Pair2::x), from.channels};
    add(to, at, at, {0, 0}, Pooling(from, to, w, h, p, mean, counted));
  }

  // `groups` 0: over the batch, with statistics at `mean` and `variance` in a row, which take a `share` of each batch's.
  void normalisation(ptrdiff_t groups, float eps, float share, bool rectified, ptrdiff_t weight, ptrdiff_t bias,
                     ptrdiff_t mean, ptrdiff_t variance, ptrdiff_t input) {
    const size_t at = value(input);
    const Shape shape = network_.shape(at);
    require(groups >= 0 && (groups == 0 || shape.channels % groups == 0), "groups must divide the channels");
    if (weight != -1) own(weight, shape.channels, bias, shape.channels);
    require(weight != -1 || bias == -1, "a bias needs a weight");
    if (groups == 0) {
      normalised_ = std::min(normalised_, shape.height * shape.width);
      for (const ptrdiff_t begin : {mean, variance})
        require(begin >= 0 && begin <= 4 * MOST, "statistics must have a place in the row");
      statistics_begin_ = std::min({statistics_begin_, mean, variance});
      statistics_end_ = std::max({statistics_end_, mean + shape.channels, variance + shape.channels});
    }
    add(shape, at, at, {0, 0}, Normalisation(shape, {groups, eps, share, rectified, weight, bias, mean, variance}));
  }

  void sum(bool rectified, ptrdiff_t input, ptrdiff_t beside) {
    const size_t at = value(input), other = value(beside);
    const Shape a = network_.shape(at), b = network_.shape(other);
    require(a.height == b.height && a.width == b.width && a.channels == b.channels, "a sum is of maps of one shape");
    add(a, at, other, {0, 0}, Sum(a, rectified));
  }

  void dropout(ptrdiff_t input) {
    const size_t at = value(input);
    const Shape shape = network_.shape(at);
    require(masked_ <= MOST, "masks must not be above 2^27 numbers");
    add(shape, at, at, {0, 0}, Dropout(shape, masked_));
    masked_ += shape.size();
    grow(masked_);
  }

  void activation(const std::string& name, ptrdiff_t input) {
    const size_t at = value(input);
    const Shape shape = network_.shape(at);
    const auto take = [&](Layer layer) { add(shape, at, at, {0, 0}, std::move(layer)); };
    if (name == "relu") return take(Activation<Rectifier>(shape));
    if (name == "relu6") return take(Activation<Rectifier6>(shape));
    if (name == "tanh") return take(Activation<Tanh>(shape));
    if (name == "sigmoid") return take(Activation<Sigmoid>(shape));
    if (name == "silu") return take(Activation<Silu>(shape));
    if (name == "gelu") return take(Activation<Gelu>(shape));
    refuse("no activation " + name);
  }

  // Of texts, which the network takes as the numbers of their words. The vector of the word `skipped` is not learned.
  void embedding(ptrdiff_t vocabulary, ptrdiff_t width, ptrdiff_t skipped, ptrdiff_t weight) {
    const Shape from = network_.input();
    require(network_.layers() == 0 && from.height == 1 && from.width == 1, "an embedding is the first layer, of texts");
    require(vocabulary >= 1 && vocabulary <= (1 << 24), "a vocabulary must lie between 1 and 2^24");
    own(weight, times(vocabulary, width, "weights"), -1, 0);
    vocabulary_ = vocabulary;
    add({1, 1, width}, 0, 0, {0, 0}, Embedding(from.channels, vocabulary, width, skipped, weight));
  }

  std::tuple<ptrdiff_t, ptrdiff_t, ptrdiff_t> shape_of(ptrdiff_t input) const {
    const auto [height, width, channels] = network_.shape(value(input));
    return {height, width, channels};
  }

  std::tuple<ptrdiff_t, ptrdiff_t, ptrdiff_t> reached() const { return shape_of(-1); }

  // Samples that a call takes at most.
  ptrdiff_t most() const { return MOST / largest_; }

  // Of rows with a batch each, one after the other: the first counts[0] samples of `index` are the first row's. Returns
  // the mean losses.
  std::vector<double> gradient(Rows rows, Rows gradients, Array x, Integers64 index, Counts counts, Integers64 targets,
                               Floats shift, Floats scale, bool pairs, ptrdiff_t skipped, std::optional<Floats> masks) {
    ready(rows, gradients.shape(1));
    require(gradients.shape(0) == rows.shape(0), "gradients must have a row for each");
    apart({span("gradients", gradients), stored(rows)},
          {span("x", x), span("index", index), span("targets", targets), span("shift", shift), span("scale", scale),
           span("masks", masks)});
    apart({span("gradients", gradients)}, {span("rows", rows)});
    below(skipped);
    return learn(rows, x, index, counts, targets, shift, scale, pairs, skipped, masks, [&](ptrdiff_t i) {
      return Update{at(rows, i), at(gradients, i)};
    });
  }

  // `part`: the numbers of a row that take the step, from the first to before the last; moments are those of them.
  std::vector<double> step(Rows rows, Rows moments, Array x, Integers64 index, Counts counts, Integers64 targets,
                           Floats shift, Floats scale, bool pairs, float lr, float momentum, float decay, float pull,
                           std::optional<Spaced> centre, std::optional<Spaced> constant, Sizes part, ptrdiff_t skipped,
                           std::optional<Floats> masks) {
    const auto [begin, end] = part;
    const bool remembers = momentum != 0;
    ready(rows, rows.shape(1));
    below(skipped);
    require(0 <= begin && begin <= end && end <= static_cast<ptrdiff_t>(rows.shape(1)), "part must lie in the row");
    require(!remembers || (moments.shape(0) == rows.shape(0) && joined(moments) &&
                           static_cast<ptrdiff_t>(moments.shape(1)) >= std::min(end, size_) - begin),
            "moments must have a number for each that takes the step");
    for (const auto& beside : {centre, constant})
      require(!beside || (beside->shape(0) >= rows.shape(0) && joined(*beside) &&
                          static_cast<ptrdiff_t>(beside->shape(1)) >= size_),
              "a pull must have a number for each parameter");
    apart({span("rows", rows), remembers ? span("moments", moments) : Span{}},
          {span("x", x), span("index", index), span("targets", targets), span("shift", shift), span("scale", scale),
           span("centre", centre), span("constant", constant), span("masks", masks)});
    return learn(rows, x, index, counts, targets, shift, scale, pairs, skipped, masks, [&](ptrdiff_t i) {
      return Update{at(rows, i), remembers ? at(moments, i) : nullptr, true, lr, momentum, decay, pull,
                    centre ? at(*centre, i) : nullptr, constant ? at(*constant, i) : nullptr, begin, end};
    });
  }

  // As `gradient`, some samples at a time. `share` above 0: a row's samples, all at a time, are normalised by their own
  // statistics, of which those in the row take such a share.
  void outputs(Rows rows, Table made, Array x, Integers64 index, Counts counts, Floats shift, Floats scale, bool pairs,
               float share) {
    require(network_.layers() > 0, "a network needs a layer");
    require(joined(rows) && static_cast<ptrdiff_t>(rows.shape(1)) >= std::max(size_, statistics_end_),
            "a row has fewer numbers than the layers have parameters and statistics");
    const auto width = network_.reached().size();
    require(has(made, static_cast<ptrdiff_t>(index.size()), width),
            "made must have a row for each index, and a column for each output");
    Taken taken = take(x, index, counts, rows.shape(0), shift, scale);
    apart({span("made", made), stored(rows)},
          {span("x", x), span("index", index), span("shift", shift), span("scale", scale)});
    apart({span("made", made)}, {span("rows", rows)});
    const ptrdiff_t together = share > 0 ? most() : std::max<ptrdiff_t>(1, most() / 8);
    float* to = made.data();
    for (size_t i = 0; i < counts.size(); ++i)
      for (ptrdiff_t batch, left = counts[i]; left > 0; left -= batch) {
        batch = std::min(left, together);
        require(batch == left || share == 0, TOO_MANY);
        Pass pass{at(rows, static_cast<ptrdiff_t>(i)), batch, pairs};
        pass.training = pass.stores = share > 0;
        pass.share = share;
        Maps& logits = network_.forward(pass, taken.samples, false);
        for (ptrdiff_t n = 0; n < batch; ++n, to += width) std::copy_n(logits.values(n), width, to);
        taken.samples.index += batch;
      }
  }

 private:
  struct Taken {
    std::vector<float> shift, scale;
    Samples samples;
  };

  static Shape shape(ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels) {
    times(times(height, width, "image"), channels, "image");
    return {height, width, channels};
  }

  void grow(ptrdiff_t numbers) { largest_ = std::max(largest_, numbers); }

  size_t value(ptrdiff_t input) const {
    const auto last = static_cast<ptrdiff_t>(network_.layers());
    require(-1 <= input && input <= last, "input: no such layer");
    return static_cast<size_t>(input < 0 ? last : input);
  }

  void add(Shape to, size_t input, size_t beside, Pair2 padding, Layer layer) {
    require(vocabulary_ == 0 || (input > 0 && beside > 0) || network_.layers() == 0, "an embedding alone reads texts");
    network_.add(to, input, beside, padding, std::move(layer));
    const auto [height, width, channels] = network_.framed(input);
    grow(times(times(height, width, "image"), channels, "image"));
    grow(times(to.size(), 1, "maps"));
  }

  // Parameters' places in a row: they must not overlap, and the row must be long enough, which `ready` sees to.
  void own(ptrdiff_t weight, ptrdiff_t weights, ptrdiff_t bias, ptrdiff_t biases) {
    require(weight >= size_ && weight <= MOST, "weight must begin behind all parameters so far");
    size_ = weight + weights;
    require(bias == -1 || (bias >= size_ && bias <= 2 * MOST), "bias must begin behind the weight, or be -1");
    if (bias != -1) size_ = bias + biases;
  }

  void below(ptrdiff_t skipped) const {
    require(0 <= skipped && skipped < static_cast<ptrdiff_t>(network_.layers()), "skipped: no layer would be left");
  }

  void ready(const Rows& rows, size_t target) const {
    const Shape logits = network_.reached();
    require(network_.layers() > 0 && logits.height == 1 && logits.width == 1, "the last layer must make one number a class");
    require(network_.joined(), "what a layer makes is read by none");
    require(joined(rows) && static_cast<ptrdiff_t>(rows.shape(1)) >= size_ && static_cast<ptrdiff_t>(target) >= size_,
            "a row has fewer numbers than the layers have parameters (" + std::to_string(size_) + ")");
    require(statistics_begin_ >= size_, "statistics must stand behind all parameters");
  }

  // Whether rows have statistics, which a pass in training changes.
  bool stores(const Rows& rows) const {
    return statistics_end_ && static_cast<ptrdiff_t>(rows.shape(1)) >= statistics_end_;
  }
  Span stored(const Rows& rows) const { return stores(rows) ? span("rows", rows) : Span{}; }

  Taken take(const Array& x, const Integers64& index, const Counts& counts, size_t rows, const Floats& shift,
             const Floats& scale) const {
    const Shape input = network_.input();
    const decltype(Samples::at) from = numbers_of(x);
    require((from.index() >= 2) == (vocabulary_ > 0), "samples must be uint8 or float32, and texts int32 or int64");
    const bool images = x.ndim() == 4 && static_cast<ptrdiff_t>(x.shape(1)) == input.height &&
                        static_cast<ptrdiff_t>(x.shape(2)) == input.width &&
                        static_cast<ptrdiff_t>(x.shape(3)) == input.channels;
    const bool vectors = x.ndim() == 2 && input.height == 1 && input.width == 1 &&
                         static_cast<ptrdiff_t>(x.shape(1)) == input.channels;
    require(images || vectors, "samples do not have the network's shape");
    const auto samples = static_cast<ptrdiff_t>(index.size()), count = static_cast<ptrdiff_t>(x.shape(0));
    ptrdiff_t left = samples;
    for (const ptrdiff_t batch : counts) {
      require(0 <= batch && batch <= left, "counts must add up to the samples");
      left -= batch;
    }
    require(left == 0 && counts.size() == rows, "counts must have a number for each row, and add up to the samples");
    for (ptrdiff_t n = 0; n < samples; ++n)
      if (index.data()[n] < 0 || index.data()[n] >= count)
        refuse("index " + std::to_string(index.data()[n]) + " is none of " + std::to_string(count) + " samples");
    if (vocabulary_ > 0) std::visit([&](const auto* texts) { require_words(texts, index); }, from);
    Taken taken{spread(shift, "shift"), spread(scale, "scale"), {from, index.data(), nullptr, nullptr}};
    taken.samples.shift = taken.shift.data(), taken.samples.scale = taken.scale.data();
    return taken;
  }

  static decltype(Samples::at) numbers_of(const Array& x) {
    if (x.dtype() == nb::dtype<uint8_t>()) return static_cast<const uint8_t*>(x.data());
    if (x.dtype() == nb::dtype<float>()) return static_cast<const float*>(x.data());
    if (x.dtype() == nb::dtype<int32_t>()) return static_cast<const int32_t*>(x.data());
    if (x.dtype() == nb::dtype<int64_t>()) return static_cast<const int64_t*>(x.data());
    refuse("samples must be uint8 or float32, and texts int32 or int64");
  }

  template <typename T>
  void require_words(const T* texts, const Integers64& index) const {
    const ptrdiff_t length = network_.input().channels;
    for (size_t n = 0; n < index.size(); ++n)
      for (ptrdiff_t t = 0; t < length; ++t) {
        const auto word = static_cast<int64_t>(texts[index.data()[n] * length + t]);
        if (word < 0 || word >= vocabulary_) refuse("word " + std::to_string(word) + " is not in the vocabulary");
      }
  }

  // A text's words are taken as they are; they are not in channels.
  std::vector<float> spread(const Floats& values, const char* name) const {
    const auto channels = static_cast<size_t>(network_.input().channels);
    require(values.size() == 1 || values.size() == channels,
            std::string(name) + " must have 1 number, or one a channel");
    return values.size() == 1 ? std::vector<float>(channels, values.data()[0])
                              : std::vector<float>(values.data(), values.data() + channels);
  }

  // `update_of`: where the gradients of a row go.
  template <class UpdateOf>
  std::vector<double> learn(const Rows& rows, const Array& x, const Integers64& index, const Counts& counts,
                            const Integers64& targets, const Floats& shift, const Floats& scale, bool pairs,
                            ptrdiff_t skipped, const std::optional<Floats>& masks, UpdateOf update_of) {
    Taken taken = take(x, index, counts, rows.shape(0), shift, scale);
    for (const ptrdiff_t batch : counts) {
      require(batch >= 1, "a batch needs a sample");
      require(batch <= most(), TOO_MANY);
      require(normalised_ > 1 || batch > 1, "a batch's statistics need more than one number a channel");
    }
    const auto samples = static_cast<ptrdiff_t>(index.size());
    require(targets.size() == index.size(), "targets must have a number for each index");
    require(!masks || static_cast<ptrdiff_t>(masks->size()) == masked_ * samples, "masks must have a number for each");
    const ptrdiff_t classes = network_.reached().channels;
    for (ptrdiff_t n = 0; n < samples; ++n)
      if (targets.data()[n] < 0 || targets.data()[n] >= classes)
        refuse("target " + std::to_string(targets.data()[n]) + " is none of " + std::to_string(classes) + " classes");
    std::vector<double> losses;
    ptrdiff_t first = 0;
    for (const ptrdiff_t batch : counts) {
      const Update update = update_of(static_cast<ptrdiff_t>(losses.size()));
      Pass pass{update.row, batch, pairs, true, stores(rows)};
      pass.masks = masks ? masks->data() + masked_ * first : nullptr;
      losses.push_back(network_.learn(update, pass, taken.samples, targets.data() + first, static_cast<size_t>(skipped)));
      taken.samples.index += batch;
      first += batch;
    }
    return losses;
  }

  Network network_;
  ptrdiff_t size_ = 0, largest_ = 1;  // parameters of all layers; numbers of the largest map of a sample
  ptrdiff_t statistics_begin_ = PTRDIFF_MAX, statistics_end_ = 0;
  ptrdiff_t normalised_ = PTRDIFF_MAX;  // least places of maps that are normalised over a batch
  ptrdiff_t masked_ = 0;      // numbers of a sample in masks
  ptrdiff_t vocabulary_ = 0;  // words that a text may have; 0: samples are no texts
};

}  // namespace pomona
