// Numbers and short vectors as text for people.
#pragma once
#include <string>
#include <vector>

namespace qkv::cli {

/// Six decimals, whole numbers without any; "1.2e-07" and "1.23457e+09" where that would say nothing.
std::string number(double x);

/// "[1, -0.5, 2]"; of more than four numbers the first three and the last, and how many there are.
std::string vector_text(const std::vector<double>& x);

/// A factor of 0 gives zeros, whatever the numbers are.
std::vector<double> times(double factor, std::vector<double> x);

/// |a - b|; 0 where both are NaN or the same infinity, infinity where one of them alone is NaN.
double apart(double a, double b);

}  // namespace qkv::cli
