#include "qkv/pass.h"

#include <utility>

namespace qkv::passes {

Arena::~Arena() = default;

About::About() = default;
About::About(const About&) = default;
About::About(About&&) noexcept = default;
About& About::operator=(const About&) = default;
About& About::operator=(About&&) noexcept = default;
About::~About() = default;

Score::Score(About about) : about_(std::move(about)) {}
Score::~Score() = default;
bool Score::reads_scores() const { return true; }
bool Score::adds_matrix() const { return false; }
Score::Part Score::adds_to(size_t, int32_t, KeyRange, KeyRange) const { return {}; }
bool Score::hides() const { return false; }
void Score::hide(const Sites&, uint8_t*) const {}
bool Score::may_hide(const Sites&) const { return true; }

Pattern::Pattern(About about) : about_(std::move(about)) {}
Pattern::~Pattern() = default;
void Pattern::visit(std::span<const Row>, Stretches&) const {}
bool Pattern::has_visit() const { return false; }

Observer::~Observer() = default;
void Observer::begin(const Extents&) {}

}  // namespace qkv::passes
