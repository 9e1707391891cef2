// The buffer into which other ranks write. It has four channels; each is an array [source
// rank][ring][slot] of messages.
//
//   one-shot     rows of x, to all
//   share        two-shot: rows of x, to the rank that adds them up
//   total        two-shot: sums, to all
//   statistics   of peer_sharded_norm
//
// A message is its payload and, as its last four words, a header. A row begins on a line of the
// cache: stores that straddle lines take more packets of the link. Every word that has not arrived
// is kPeerEmpty. Ring b carries rows b, b + G, .. of all calls, one after the other. Message number
// j is in slot j % kPeerSlots. A rank sends message j of a ring after it has consumed message j - 1
// of every source. That proves to each source that slot j - kPeerSlots is free. There are no
// credits and no barrier.
#pragma once

#include <cstdint>

#include "core/peer/choice.h"

namespace fastnorm {

inline constexpr uint32_t kPeerEmpty = 0xffffffff;
inline constexpr int kPeerSlots = 4;
inline constexpr int kPeerHeaderWords = 4;
inline constexpr int kPeerLineWords = 32;

// What is sent for a word. A word that looks empty is one NaN or two, and becomes another NaN.
constexpr uint32_t peer_sent(uint32_t word) { return word < kPeerEmpty ? word : kPeerEmpty - 1; }

enum PeerChannel : int { kPeerOneShot, kPeerShare, kPeerTotal, kPeerStatistics, kPeerChannels };

struct PeerHeader {
  uint32_t word[kPeerHeaderWords];  // rows, columns, message number, call
};

struct PeerLayout {
  uint64_t first_word[kPeerChannels] = {};
  uint64_t message_words[kPeerChannels] = {};
  uint64_t words = 0;
  int32_t rings = 0;

  uint64_t bytes() const { return words * 4; }
  bool has(int channel) const { return message_words[channel] != 0; }
  // The first word of message `number` of a ring: its payload.
  uint64_t message(int channel, int source, int ring, uint32_t number) const {
    const uint64_t at = (static_cast<uint64_t>(source) * static_cast<uint64_t>(rings) +
                         static_cast<uint64_t>(ring)) *
                            kPeerSlots +
                        number % kPeerSlots;
    return first_word[channel] + at * message_words[channel];
  }
  // From a message's first word to its header.
  uint64_t header(int channel) const { return message_words[channel] - kPeerHeaderWords; }
};

// Depends only on options that all ranks agree on. Channels that their calls do not use are empty.
inline PeerLayout peer_layout(const PeerDesc& desc) {
  const auto round_up = [](uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
  };
  const auto columns = static_cast<uint64_t>(desc.max_columns);
  const uint64_t row_words = (columns * static_cast<uint64_t>(dtype_bytes(desc.dtype)) + 3) / 4;
  // Sums may be f32: a word for each element of a row that is filled up to vectors of 16 bytes.
  const uint64_t totals = round_up(columns, 16 / static_cast<uint64_t>(dtype_bytes(desc.dtype)));
  const uint64_t payload[kPeerChannels] = {row_words, row_words, totals, 4};
  PeerLayout layout;
  layout.rings = desc.rings;
  for (int c = 0; c < kPeerChannels; ++c) {
    layout.first_word[c] = layout.words;
    if (c == kPeerOneShot && !peer_may_one_shot(desc)) continue;
    if ((c == kPeerShare || c == kPeerTotal) && !peer_may_two_shot(desc)) continue;
    // A message of statistics is a sector of a line.
    layout.message_words[c] = round_up(payload[c], 4) + kPeerHeaderWords;
    if (c != kPeerStatistics)
      layout.message_words[c] = round_up(layout.message_words[c], kPeerLineWords);
    const uint64_t messages = static_cast<uint64_t>(desc.ranks) *
                              static_cast<uint64_t>(desc.rings) * static_cast<uint64_t>(kPeerSlots);
    layout.words += round_up(messages * layout.message_words[c], 64);
  }
  return layout;
}

}  // namespace fastnorm
