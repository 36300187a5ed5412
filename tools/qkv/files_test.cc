// Files on the command line: formats, names, the .json beside them, damaged ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "io/test_files.h"
#include "qkv/command_fixture.h"
#include "qkv/io.h"

namespace qkv::cli {
namespace {

using io::bytes_of;
using io::put_bytes;
using io::safetensors_bytes;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class Files : public Command {
 protected:
  /// A .safetensors of float32 tensors {1, 2, rows, 4} with these names.
  std::string safetensors(const std::string& name, const std::vector<std::string>& tensors, int rows = 3) const {
    json header;
    std::string data;
    for (const std::string& tensor : tensors) {
      const size_t begin = data.size();
      for (int n = 0; n < 8 * rows; ++n) {
        const float x = std::sin(static_cast<float>(data.size()));
        data.append(reinterpret_cast<const char*>(&x), sizeof x);
      }
      header[tensor] = {{"dtype", "F32"}, {"shape", {1, 2, rows, 4}}, {"data_offsets", {begin, data.size()}}};
    }
    put_bytes(file(name), safetensors_bytes(header.dump(), data));
    return file(name);
  }
  std::string sidecar() const { return bytes_of(file("out.json")); }
};

TEST_F(Files, AttendSeeAndCompareReadSafetensorsUnderOtherNames) {
  const std::string path = safetensors(
      "m.safetensors", {"h.1.attn.query", "h.1.attn.key", "h.1.attn.value", "h.1.attn.attn_output", "other"});
  const Outcome attend = run("attend " + path + " -o " + file("out.npz"));
  ASSERT_EQ(attend.code, 0) << attend.err;
  EXPECT_THAT(attend.err, AllOf(HasSubstr("q is h.1.attn.query in the file, [1, 2, 3, 4]"),
                                HasSubstr("layer 1: q {1, 2, 3, 4}"), HasSubstr("names say nothing here: other")));
  EXPECT_THAT(Npz(file("out.npz")).names(), Contains("layer1.out"));
  EXPECT_EQ(run("see " + path + " --json").code, 0);
  const Outcome compare = run("compare " + path + " --json");
  EXPECT_THAT(compare.err, AllOf(HasSubstr("q is h.1.attn.query"), HasSubstr("names say nothing here: other")));
  EXPECT_EQ(json::parse(compare.out)["differences"][0]["tensor"], "out") << compare.err;
  EXPECT_EQ(run("attend --q " + path + ":h.1.attn.query --k " + path + ":h.1.attn.key --v " + path +
                ":h.1.attn.value -o " + file("out.npy"))
                .code,
            0);
}

TEST_F(Files, SeveralNamesThatFitAreRefusedWithAllOfThem) {
  expect_refusal("attend " + safetensors("m.safetensors", {"enc.q", "dec.q", "k", "v"}) + " -o " + file("out.npz"), 2,
                 "q can be each of enc.q, dec.q");
}

TEST_F(Files, DamagedFilesAreOneSentenceAndCodeTwo) {
  const std::string good = bytes_of(safetensors("good.safetensors", {"q", "k", "v"}));
  const std::string npz = bytes_of(kSample);
  const std::vector<std::pair<std::string, std::string>> damaged = {
      {"empty.npz", ""},
      {"empty.npy", ""},
      {"empty.safetensors", ""},
      {"cut.npz", npz.substr(0, npz.size() / 2)},
      {"cut.safetensors", good.substr(0, good.size() - 5)},
      {"header.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)},
      {"type.npz", good},
      {"type.safetensors", npz},
      {"type.npy", npz},
      {"text.npz", "hello"},
      {"torch.pt", "PK\x03\x04"},
  };
  for (const auto& [name, bytes] : damaged) {
    put_bytes(file(name), bytes);
    for (const std::string command : {"attend ", "see "})
      expect_refusal(command + file(name) + (command == "attend " ? " -o " + file("out.npz") : ""), 2, name);
  }
  EXPECT_THAT(folder_.files(), Not(Contains("out.npz")));
  EXPECT_THAT(folder_.files(), Each(Not(HasSubstr(".tmp"))));
}

TEST_F(Files, OfAnotherKindSayWhatTheyAreAndHowToConvertThem) {
  struct Kind {
    std::string name, bytes, found;
  };
  const std::string npz = bytes_of(kSample), npy = bytes_of(std::string(QKV_SOURCE_DIR) + "/tests/data/float32_v1.npy");
  const std::string png("\x89PNG\r\n\x1a\n", 8), hdf5("\x89HDF\r\n\x1a\n", 8), header(22, '\0');
  const std::string torch = "PK\x03\x04" + header + std::string("\x0d\0\0\0", 4) + "q/data.pkl and so on";
  const Kind kinds[] = {
      {"a.csv", "1,2\n3,4\n", R"(as text, expected .npy, .npz or .safetensors; in Python: `import numpy; numpy.save()"},
      {"a.txt", "hello", R"(numpy.loadtxt(")"},
      {"a", "hello", "a is text"},
      {"a.npz", "hello", "a.npz is text"},
      {"a.pt", torch, R"(safetensors.torch.save_file(torch.load(")"},
      {"b.pth", "\x80\x02}", "torch.load("},
      {"torch.npz", "PK\x03\x04" + header + std::string("\x0a\0\0\0", 4) + "q/data.pkl and so on", "a file of PyTorch"},
      {"a.pkl", "\x80\x04]", "allow_pickle=True"},
      {"a.h5", hdf5, R"(f = h5py.File(")"},
      {"hdf5.npz", hdf5, "a file of HDF5"},
      {"a.png", png, "is a PNG picture"},
      {"png.npz", png, "is a PNG picture"},
      {"png.npy", png, "is a PNG picture"},
      {"png.safetensors", png, "is a PNG picture"},
      {"empty", "", "is empty"},
      {"empty.npy", "", "is empty"},
      {"no-ending", npz, "give it a name that ends in .npz"},
      {"an.npy", npz, "give it a name that ends in .npz"},
      {"an.npz", npy, "give it a name that ends in .npy"},
      {"a.safetensors", npy, "give it a name that ends in .npy"},
      {"noise", std::string("\1\2\3", 3), "is no file of tensors, expected .npy, .npz or .safetensors"},
  };
  for (const Kind& kind : kinds) {
    put_bytes(file(kind.name), kind.bytes);
    expect_refusal("see " + file(kind.name), 2, kind.found);
    expect_refusal("attend " + file(kind.name) + " -o " + file("out.npz"), 2, kind.found);
    expect_refusal("see --q " + file(kind.name) + " --k " + file(kind.name), 2, kind.found);
  }
  std::filesystem::create_directory(file("folder"));
  for (const auto& [name, found] :
       {std::pair{file("folder"), "is a folder"}, {"/dev/null", "is a device"}, {"none", "cannot open"}})
    expect_refusal("attend " + std::string(name) + " -o " + file("out.npz"), 2, found);
}

TEST_F(Files, APipeIsReadAsAnNpy) {
  const std::string npy = std::string(QKV_SOURCE_DIR) + "/tests/data/float32_v1.npy";
  put_bytes(file("script"), std::string(QKV_COMMAND) + " see --q <(cat " + npy + ") --k <(cat " + npy + ") >/dev/null");
  EXPECT_EQ(std::system(("bash " + file("script")).c_str()), 0);
}

TEST_F(Files, NaNIsToldAndNothingButNaNIsRefused) {
  std::vector<float> x(24, 0.5F);
  const auto put = [&] {
    const NamedTensor tensors[] = {{"q", View<const float>(x.data(), {2, 3, 4})},
                                   {"k", View<const float>(x.data(), {2, 3, 4})}};
    write_npz(file("m.npz"), tensors);
  };
  x[5] = x[6] = std::numeric_limits<float>::quiet_NaN();
  put();
  const Outcome some = run("attend " + file("m.npz") + " --lse -o " + file("out.npz"));
  EXPECT_EQ(some.code, 0);
  EXPECT_THAT(some.err, HasSubstr("2 of the 24 values of k are NaN"));
  std::fill(x.begin(), x.end(), std::numeric_limits<float>::quiet_NaN());
  put();
  expect_refusal("attend " + file("m.npz") + " -o " + file("none.npz"), 2, "q {1, 2, 3, 4} holds no number");
}

TEST_F(Files, TheSidecarSaysTheAttentionAndGoesOnBesideTheResults) {
  const std::string path = safetensors("m.safetensors", {"q", "k", "v"});
  put_bytes(file("m.json"),
            R"({"tokens": ["a", "b", "c"], "attention": "causal | softmax", "scale": 0.25, "model": "m"})");
  const Outcome o = run("attend " + path + " -o " + file("out.npz") + " --weights --json");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json::parse(o.out)["layers"][0]["attention"], "causal | scale:0.25 | softmax");
  const json side = json::parse(sidecar());
  EXPECT_EQ(side["tokens"], json::parse(R"(["a", "b", "c"])"));
  EXPECT_EQ(side["attention"], "causal | scale:0.25 | softmax");
  EXPECT_EQ(side["scale"], 0.25);
  EXPECT_EQ(side["model"], "m");
  EXPECT_THAT(run("see " + file("out.npz") + " --head 0").out, HasSubstr("2 c"));

  const Outcome other = run("attend " + path + " -o " + file("out.npz") + " --scale 2");
  EXPECT_THAT(other.err, HasSubstr("is not used: options say another"));
  EXPECT_EQ(json::parse(sidecar())["attention"], "scale:2 | softmax");
  EXPECT_EQ(run("attend " + path + " -o " + file("m.npz")).code, 0);
  EXPECT_EQ(json::parse(bytes_of(file("m.json")))["model"], "m");
}

TEST_F(Files, WithoutNeedNoSidecarIsWrittenAndNoOtherJsonIsReplaced) {
  const std::string path = safetensors("m.safetensors", {"q", "k", "v"});
  ASSERT_EQ(run("attend " + path + " -o " + file("out.npz")).code, 0);
  EXPECT_THAT(folder_.files(), Not(Contains("out.json")));
  put_bytes(file("out.json"), R"({"name": "something else"})");
  put_bytes(file("out.npz"), "before");
  expect_refusal("attend " + path + " --quiet --causal -o " + file("out.npz"), 2, "choose another name");
  EXPECT_EQ(bytes_of(file("out.npz")), "before");
  ASSERT_EQ(run("attend " + path + " -o " + file("out.npz")).code, 0);
  EXPECT_THAT(sidecar(), HasSubstr("something else"));
  put_bytes(file("out.json"), R"({"tokens": ["of", "an", "older run"]})");
  ASSERT_EQ(run("attend " + path + " -o " + file("out.npz")).code, 0);
  EXPECT_THAT(sidecar(), Not(HasSubstr("older run")));
}

TEST_F(Files, ABrokenSidecarIsRefusedByName) {
  const std::string path = safetensors("m.safetensors", {"q", "k", "v"});
  put_bytes(file("m.json"), R"({"attention": "causaal | softmax"})");
  expect_refusal("attend " + path + " -o " + file("out.npz"), 2, "the attention in " + file("m.json"));
  put_bytes(file("m.json"), "{");
  expect_refusal("attend " + path + " -o " + file("out.npz"), 2, "is no JSON");
}

TEST_F(Files, Bfloat16IsWrittenAsFloat32AndNamedBesideIt) {
  std::string data;
  for (int n = 0; n < 3 * 12; ++n) data += {static_cast<char>(n), '\x3f'};
  json header;
  for (size_t n = 0; n < 3; ++n)
    header[std::string(1, "qkv"[n])] = {
        {"dtype", "BF16"}, {"shape", {1, 3, 4}}, {"data_offsets", {24 * n, 24 * n + 24}}};
  put_bytes(file("m.safetensors"), safetensors_bytes(header.dump(), data));
  ASSERT_EQ(run("attend " + file("m.safetensors") + " -o " + file("out.npz")).code, 0);
  EXPECT_EQ(Npz(file("out.npz")).read("out").dtype(), DType::kFloat32);
  EXPECT_EQ(json::parse(sidecar())["bfloat16"], json::parse(R"(["out"])"));
}

TEST_F(Files, ScaleAndDocumentsMayBeTensors) {
  const Npz sample(kSample);
  const Array q = sample.read("layer0.q"), k = sample.read("layer0.k");
  const double scale = 0.5;
  std::vector<int32_t> ids(13);
  ids[12] = 1;
  write_npz(file("m.npz"), std::vector<NamedTensor>{{"q", q.view()},
                                                    {"k", k.view()},
                                                    {"scale", View<const double>(&scale, {1})},
                                                    {"document_ids", View<const int32_t>(ids.data(), {13})}});
  const json o = json::parse(run("attend " + file("m.npz") + " --lse -o " + file("out.npz") + " --json").out);
  EXPECT_EQ(o["layers"][0]["attention"], "documents | scale:0.5 | softmax");
  EXPECT_EQ(o["layers"][0]["visible_pairs"], 12 * (12 * 12 + 1));
}

TEST_F(Files, ReceivedIsTheSumOverQueries) {
  ASSERT_EQ(run("attend " + kSample + " --layer 0 --received --weights -o " + file("out.npz")).code, 0);
  const Npz out(file("out.npz"));
  const Array received = out.read("layer0.received"), weights = out.read("layer0.weights");
  const auto r = received.view().as<const double>();
  const auto w = weights.view().as<const float>();
  for (int64_t h = 0; h < 12; ++h) {
    for (int64_t j = 0; j < 13; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < 13; ++i) sum += static_cast<double>(w(0, h, i, j));
      EXPECT_NEAR(r(0, h, j), sum, 1e-6);
    }
  }
}

TEST_F(Files, AFileLargerThanAllowedIsOneSentenceAndLeavesNothing) {
  const std::string path = safetensors("m.safetensors", {"q", "k", "v"}, 2000);
  const std::string limited = "ulimit -f 16; " + std::string(QKV_COMMAND) + " ";  // 8 kB in sh
  const auto expect_too_large = [&](const std::string& arguments, int code, const std::string& out) {
    const int status = std::system((limited + arguments + " >" + out + " 2>" + file("stderr")).c_str());
    EXPECT_TRUE(WIFEXITED(status)) << arguments << status;
    EXPECT_EQ(WEXITSTATUS(status), code) << arguments;
    EXPECT_THAT(bytes_of(file("stderr")), AllOf(HasSubstr("cannot be written"), HasSubstr("File too large")));
    EXPECT_THAT(folder_.files(), AllOf(Each(Not(HasSubstr("tmp"))), Each(Not(HasSubstr("out."))))) << arguments;
  };
  const std::string attend = "attend --quiet " + path + " -o ", see = "see " + path + " --head 0 ";
  expect_too_large(attend + file("out.npz"), 2, "/dev/null");
  expect_too_large(attend + file("out.npy"), 2, "/dev/null");
  expect_too_large(see + "--html " + file("out.html"), 2, "/dev/null");
  expect_too_large(see + "--png " + file("out.png"), 2, "/dev/null");
  expect_too_large(see + "--row 5 --json", 1, file("row.json"));
}

TEST_F(Files, OfABillionOperationsAndMoreTheShareOfThePeakIsSaid) {
  const auto peak = [&](int64_t length) {  // 4 * 61 operations for each pair of one head
    const Outcome o = run("attend " + qkv_files({1, length, 61}) + " -o " + file("out.npz") + " --json");
    EXPECT_EQ(o.code, 0) << o.err;
    const json gflops = json::parse(o.out)["layers"][0]["peak_gflops"];
    EXPECT_EQ(o.err.find("% of the peak of") != o.err.npos, gflops.is_number()) << o.err;
    EXPECT_THAT(o.err, Not(HasSubstr("\r")));
    return gflops;
  };
  EXPECT_GT(peak(2025).get<double>(), 0);
  EXPECT_TRUE(peak(2024).is_null());
}

}  // namespace
}  // namespace qkv::cli
