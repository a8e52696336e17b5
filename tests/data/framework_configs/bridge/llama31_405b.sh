# Facts of NVIDIA-NeMo/Megatron-Bridge@067f987d perf_recipes/llama/h100/llama31.py
# (1024 x H100, bf16), as overrides of its library recipe.
./scripts/training/train.sh --nodes 128 --gpus-per-node 8 \
    --recipe llama31_405b_pretrain_config --mode pretrain --dataset mock \
    mixed_precision=bf16_mixed dataset.seq_length=8192 model.seq_length=8192 \
    model.tensor_model_parallel_size=8 model.pipeline_model_parallel_size=8 \
    model.context_parallel_size=2 model.virtual_pipeline_model_parallel_size=8 \
    model.sequence_parallel=true model.account_for_embedding_in_pipeline_split=true \
    model.account_for_loss_in_pipeline_split=true ddp.use_distributed_optimizer=true \
    train.global_batch_size=1536 train.micro_batch_size=1
