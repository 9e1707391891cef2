#include "support/mla_decode_work.h"

#include <algorithm>
#include <vector>

namespace fastnorm {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The requests end to end, as the planner lays them.
struct Line {
  std::vector<int32_t> tiles;
  std::vector<int64_t> first;  // position of each request, then the total

  Line(std::span<const MlaDecodeLength> lengths, int32_t split_tiles) {
    first.push_back(0);
    for (const MlaDecodeLength& length : lengths) {
      const int32_t n = mla_tiles(length);
      const int32_t pieces = split_tiles == 0 ? 1 : mla_fixed_pieces(n, split_tiles);
      tiles.push_back(n);
      first.push_back(first.back() + n + int64_t{pieces} * kMlaRequestCost);
    }
  }

  int64_t total() const { return first.back(); }
  // The last request that begins at or before a position. The end counts as one.
  int32_t at(int64_t place) const {
    return static_cast<int32_t>(std::upper_bound(first.begin(), first.end(), place) -
                                first.begin()) -
           1;
  }
};

struct Place {
  int32_t request, tile;
};

// The length of equal pieces, one for each part; 0 if they need too many parts or are too long.
int32_t even_length(const Line& line, int32_t parts, int64_t step) {
  if (static_cast<int64_t>(line.tiles.size()) > parts) return 0;
  int64_t tiles = 0;
  for (const int32_t n : line.tiles) tiles += n;
  const int64_t least = std::max<int64_t>(kMlaLeastTiles, ceil_div(tiles, parts));
  for (int64_t length = least; length < least + kMlaTriedLengths; ++length) {
    int64_t pieces = 0;
    for (const int32_t n : line.tiles) pieces += mla_fixed_pieces(n, static_cast<int32_t>(length));
    if (pieces <= parts) return length <= step + kMlaMergeCost ? static_cast<int32_t>(length) : 0;
  }
  return 0;
}

// Requests of each part if all requests have one length; 0 if that balances the parts badly.
int64_t whole_requests(const Line& line, int32_t parts, int64_t step) {
  const auto requests = static_cast<int64_t>(line.tiles.size());
  const auto [least, greatest] = std::minmax_element(line.tiles.begin(), line.tiles.end());
  if (requests <= parts || *least != *greatest) return 0;
  const int64_t count = ceil_div(requests, parts);
  const int64_t load = count * (int64_t{*greatest} + kMlaRequestCost);
  return load <= step + 2 * kMlaRequestCost + kMlaMergeCost ? count : 0;
}

// Where the parts begin, and the end, as positions on the line.
std::vector<int64_t> automatic_places(const Line& line, int32_t parts) {
  const int64_t step = std::max<int64_t>(1, ceil_div(line.total(), parts));
  std::vector<int64_t> places;
  if (const int32_t length = even_length(line, parts, step); length != 0) {
    for (size_t b = 0; b < line.tiles.size(); ++b) {
      const int32_t pieces = mla_fixed_pieces(line.tiles[b], length);
      const int64_t size = ceil_div(line.tiles[b], pieces);
      for (int32_t i = 0; i < pieces; ++i) places.push_back(line.first[b] + i * size);
    }
  } else if (const int64_t count = whole_requests(line, parts, step); count != 0) {
    for (int64_t b = 0; b < static_cast<int64_t>(line.tiles.size()); b += count)
      places.push_back(line.first[static_cast<size_t>(b)]);
  } else {
    int64_t place = 0;
    for (int32_t w = 0; w < parts; ++w) {
      places.push_back(place);
      // A rest of a request that costs less than another piece stays with this part.
      const int64_t snapped =
          line.first[static_cast<size_t>(line.at(place + step + kMlaRequestCost))];
      place = std::min(line.total(), std::max(place + step, snapped));
    }
  }
  places.resize(static_cast<size_t>(parts) + 1, line.total());
  return places;
}

std::vector<Place> automatic_cuts(const Line& line, int32_t parts) {
  std::vector<Place> cuts;
  for (const int64_t place : automatic_places(line, parts)) {
    const int32_t request = line.at(place);
    cuts.push_back(
        {request, static_cast<int32_t>(place - line.first[static_cast<size_t>(request)])});
  }
  return cuts;
}

std::vector<Place> fixed_cuts(const Line& line, int32_t split_tiles, int32_t parts) {
  const auto requests = static_cast<int32_t>(line.tiles.size());
  std::vector<Place> cuts = {{0, 0}};
  for (int32_t w = 1; w < parts; ++w) {
    const int64_t place = line.total() * w / parts;
    const int32_t request = std::min(line.at(place), requests - 1);
    const int64_t into = place - line.first[static_cast<size_t>(request)];
    const int64_t piece = std::min<int64_t>(
        into / (split_tiles + kMlaRequestCost),
        mla_fixed_pieces(line.tiles[static_cast<size_t>(request)], split_tiles) - 1);
    cuts.push_back({request, static_cast<int32_t>(piece * split_tiles)});
  }
  cuts.push_back({requests, 0});
  return cuts;
}

// Pieces of each request, from its cuts.
std::vector<int32_t> count_pieces(const Line& line, const std::vector<Place>& cuts,
                                  int32_t split_tiles) {
  std::vector<int32_t> pieces;
  for (const int32_t tiles : line.tiles)
    pieces.push_back(split_tiles == 0 ? 1 : mla_fixed_pieces(tiles, split_tiles));
  if (split_tiles != 0) return pieces;
  for (size_t w = 1; w + 1 < cuts.size(); ++w) {
    const bool again = cuts[w].request == cuts[w - 1].request && cuts[w].tile == cuts[w - 1].tile;
    if (cuts[w].tile != 0 && !again) ++pieces[static_cast<size_t>(cuts[w].request)];
  }
  return pieces;
}

}  // namespace

void mla_decode_work(std::span<const MlaDecodeLength> lengths, int32_t heads, int32_t split_tiles,
                     std::span<MlaDecodePart> parts, std::span<MlaDecodeSplit> splits,
                     MlaDecodePlanHeader* header) {
  const Line line(lengths, split_tiles);
  const auto count = static_cast<int32_t>(parts.size());
  const std::vector<Place> cuts =
      split_tiles == 0 ? automatic_cuts(line, count) : fixed_cuts(line, split_tiles, count);
  const std::vector<int32_t> pieces = count_pieces(line, cuts, split_tiles);
  *header = {};
  std::vector<int32_t> first_piece;  // of each request
  for (size_t b = 0; b < lengths.size(); ++b) {
    first_piece.push_back(header->pieces);
    if (pieces[b] == 1) continue;
    if (split_tiles != 0 || pieces[b] > 2) {
      splits[static_cast<size_t>(header->splits++)] = {static_cast<int32_t>(b), header->pieces,
                                                       pieces[b], header->units};
      header->units += mla_combine_units(pieces[b], heads * lengths[b].s_q);
    }
    header->pieces += pieces[b];
  }
  int32_t done = 0;  // pieces of the request at the cut that come before it
  for (size_t w = 0; w < parts.size(); ++w) {
    const Place from = cuts[w], to = cuts[w + 1];
    const bool in_request = from.tile != 0;
    const bool again =
        w > 0 && cuts[w - 1].request == from.request && cuts[w - 1].tile == from.tile;
    if (!in_request) {
      done = 0;
    } else if (split_tiles != 0) {
      done = from.tile / split_tiles;
    } else if (!again) {
      done = w > 0 && cuts[w - 1].request == from.request ? done + 1 : 1;
    }
    const auto b = static_cast<size_t>(from.request);
    const int32_t before = b < lengths.size() ? first_piece[b] : header->pieces;
    const bool is_empty = from.request == to.request && from.tile == to.tile;
    const auto is_pair = [&](int32_t request) {
      const auto r = static_cast<size_t>(request);
      return split_tiles == 0 && r < pieces.size() && pieces[r] == 2;
    };
    parts[w] = {
        from.request,
        from.tile,
        to.request,
        to.tile,
        before + done,
        is_empty ? 0 : std::max(lengths[b].kv_len, 0),
        (is_pair(from.request) ? kMlaFirstIsPair : 0) | (is_pair(to.request) ? kMlaLastIsPair : 0),
        0};
  }
}

}  // namespace fastnorm
