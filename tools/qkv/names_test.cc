#include "qkv/names.h"

#include <gtest/gtest.h>

#include <vector>

namespace qkv::cli {
namespace {

/// "layer4.q", with "~" in front where a pattern was needed; "-" where nothing fits.
std::string meaning(const std::string& name) {
  const auto found = understand(name);
  if (!found) return "-";
  return (found->exact ? "" : "~") + (found->layer < 0 ? "" : "layer" + std::to_string(found->layer) + ".") +
         found->tensor;
}

struct Fixture {
  const char *family, *name, *meaning;
};

void PrintTo(const Fixture& f, std::ostream* out) { *out << f.family << ": " << f.name; }

class Names : public ::testing::TestWithParam<Fixture> {};
TEST_P(Names, MeanWhatTheFamilyMeansByThem) { EXPECT_EQ(meaning(GetParam().name), GetParam().meaning); }

INSTANTIATE_TEST_SUITE_P(Dump, Names,
                         ::testing::Values(Fixture{"format", "q", "q"}, Fixture{"format", "layer0.q", "layer0.q"},
                                           Fixture{"format", "layer12.keep_mask", "layer12.keep_mask"},
                                           Fixture{"format", "wo", "wo"},
                                           Fixture{"format", "layer3.entropy", "layer3.entropy"},
                                           Fixture{"older names", "documents", "~document_ids"},
                                           Fixture{"older names", "layer2.query_offset", "~layer2.q_offset"}));
INSTANTIATE_TEST_SUITE_P(Plain, Names,
                         ::testing::Values(Fixture{"plain", "query", "~q"}, Fixture{"plain", "Q", "~q"},
                                           Fixture{"plain", "queries", "~q"}, Fixture{"plain", "keys", "~k"},
                                           Fixture{"plain", "Value", "~v"}, Fixture{"plain", "P", "~weights"},
                                           Fixture{"plain", "attn.q", "~q"},
                                           Fixture{"plain", "layer7.query", "~layer7.q"},
                                           Fixture{"plain", "q.grad", "~dq"}, Fixture{"plain", "grad_output", "~dout"},
                                           Fixture{"plain", "layers.1.attn.dlse", "~layer1.dlse"},
                                           Fixture{"plain", "cache.k", "~k"}, Fixture{"plain", "softmax_lse", "~lse"}));
INSTANTIATE_TEST_SUITE_P(
    Bert, Names,
    ::testing::Values(Fixture{"BERT", "encoder.layer.0.attention.self.query", "~layer0.q"},
                      Fixture{"BERT", "bert.encoder.layer.11.attention.self.value", "~layer11.v"},
                      Fixture{"BERT", "bert.encoder.layer.11.attention.self.key.weight", "~layer11.wk"},
                      Fixture{"BERT", "encoder.layer.2.attention.output.dense.weight", "~layer2.wo"},
                      Fixture{"BERT", "encoder.layer.2.output.dense.weight", "-"},
                      Fixture{"BERT", "encoder.layer.0.attention.self.query.bias", "-"},
                      Fixture{"DistilBERT", "distilbert.transformer.layer.3.attention.q_lin.weight", "~layer3.wq"},
                      Fixture{"ViT", "encoder.layer.5.attention.attention.query.weight", "~layer5.wq"}));
INSTANTIATE_TEST_SUITE_P(Decoders, Names,
                         ::testing::Values(Fixture{"GPT-2", "h.4.attn.query", "~layer4.q"},
                                           Fixture{"GPT-2", "transformer.h.4.attn.k", "~layer4.k"},
                                           Fixture{"GPT-2", "h.4.attn.bias", "-"},
                                           Fixture{"GPT-2", "h.4.ln_1.weight", "-"},
                                           Fixture{"GPT-2", "h.4.attn.c_attn.weight", "-"},
                                           Fixture{"LLaMA", "layers.3.self_attn.q", "~layer3.q"},
                                           Fixture{"LLaMA", "model.layers.3.self_attn.o_proj.weight", "~layer3.wo"},
                                           Fixture{"LLaMA", "model.layers.31.self_attn.k_proj.weight", "~layer31.wk"},
                                           Fixture{"LLaMA", "layers.3.attention.wv.weight", "~layer3.wv"},
                                           Fixture{"LLaMA", "model.layers.3.self_attn.q_norm.weight", "-"},
                                           Fixture{"gpt-oss", "model.layers.0.self_attn.sinks", "~layer0.sinks"},
                                           Fixture{"GGUF", "blk.6.attn_q.weight", "~layer6.wq"},
                                           Fixture{"GGUF", "blk.6.attn_output.weight", "~layer6.wo"}));
INSTANTIATE_TEST_SUITE_P(
    Others, Names,
    ::testing::Values(Fixture{"T5", "encoder.block.3.layer.0.SelfAttention.q", "~layer3.q"},
                      Fixture{"T5", "decoder.block.3.layer.1.EncDecAttention.k.weight", "~layer3.wk"},
                      Fixture{"T5", "encoder.block.3.layer.0.SelfAttention.o.weight", "~layer3.wo"},
                      Fixture{"T5", "encoder.block.3.layer.1.DenseReluDense.wo.weight", "-"},
                      Fixture{"BART", "model.decoder.layers.5.encoder_attn.v_proj.weight", "~layer5.wv"},
                      Fixture{"PyTorch", "layers.0.self_attn.out_proj.weight", "~layer0.wo"},
                      Fixture{"PyTorch", "attn.q_proj_weight", "~wq"},
                      Fixture{"timm", "blocks.9.attn.proj.weight", "~layer9.wo"},
                      Fixture{"timm", "blocks.9.mlp.fc1.weight", "-"},
                      Fixture{"Flax", "Transformer/encoderblock_7/attention/query", "~layer7.q"},
                      Fixture{"Flax", "params/layers_2/attn/attention_weights", "~layer2.weights"},
                      Fixture{"Flax", "layers_2/query/kernel", "-"}, Fixture{"Flax", "layers_2/norm/scale", "-"},
                      Fixture{"diffusers", "down.block1.attn1.to_q.weight", "~layer1.wq"}));
INSTANTIATE_TEST_SUITE_P(
    MaySayTwoThings, Names,
    ::testing::Values(Fixture{"masks", "mask", "-"}, Fixture{"masks", "attention_mask", "-"},
                      Fixture{"masks", "attn_mask", "-"}, Fixture{"scores", "attention_scores", "-"},
                      Fixture{"layers", "layer-1.q", "~q"}, Fixture{"layers", "layer99999999999.q", "~q"},
                      Fixture{"layers", "layer.q", "~q"}, Fixture{"nothing", "", "-"}, Fixture{"nothing", ".", "-"},
                      Fixture{"nothing", "unique", "-"}, Fixture{"nothing", "layer3.", "-"}));

TEST(NamesTable, ResultsAreNoInputs) {
  EXPECT_TRUE(is_input("q"));
  EXPECT_FALSE(is_input("entropy"));
}

}  // namespace
}  // namespace qkv::cli
