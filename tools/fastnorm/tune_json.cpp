#include "tune_json.h"

namespace fastnorm::tool {

Json to_json(const BenchCase& c) {
  return {{"op", c.op}, {"dtype", c.dtype}, {"rows", c.rows}, {"n", c.n}};
}

Json to_json(const Finding& finding) {
  Json json = to_json(finding.c);
  json["choice"] = finding.choice;
  json["choice_us"] = finding.choice_us;
  json["fastest"] = finding.best;
  json["fastest_us"] = finding.best_us;
  json["gain"] = finding.choice_us / finding.best_us - 1;
  return json;
}

Json to_json(const TuneCounts& counts) {
  return {{"written", counts.written},     {"found", counts.had},
          {"discarded", counts.discarded}, {"cannot_run", counts.cannot_run},
          {"too_large", counts.too_large}, {"left", counts.left}};
}

}  // namespace fastnorm::tool
