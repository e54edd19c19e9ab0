#!/usr/bin/env bash
# Llama 3.1 70B on 8 nodes of 8 H100: a plan that works and leaves time on the table.
set -euo pipefail
torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \
    --num-attention-heads 64 --group-query-attention --num-query-groups 8 \
    --swiglu --normalization RMSNorm --position-embedding-type rope \
    --untie-embeddings-and-output-weights --vocab-size 128256 \
    --seq-length 8192 --max-position-embeddings 8192 \
    --micro-batch-size 1 --global-batch-size 128 --bf16 \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 4 \
    --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --train-iters 100000 --lr 1.5e-4 --data-path "$DATA" --tokenizer-type HuggingFaceTokenizer
