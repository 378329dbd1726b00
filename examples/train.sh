#!/bin/bash
#LAB --name example --mem 10G --priority high
#LAB --time-limit 2h --retries 1
# Submit it with: lab-gpu submit examples/train.sh
# A flag on the command line wins over its #LAB line.
set -e
echo "attempt $LAB_GPU_ATTEMPT of task $LAB_GPU_TASK_ID on GPU $CUDA_VISIBLE_DEVICES"
trap 'echo "asked to stop: saving"; exit 0' USR1
for epoch in 1 2 3; do
  echo "epoch $epoch"
  sleep 1 & wait $!
done
