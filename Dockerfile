# dasmil with the kernels built for the machine that builds. Not built by us yet: no container engine was at hand.
#   docker build -t dasmil .                                          locked versions and hashes (torch with CUDA)
#   docker build -t dasmil --build-arg TORCH_INDEX=ADDRESS .          ADDRESS as torch's "Get started" page gives it:
#                                                                     that of the CPU build, or of a CUDA version
#   docker run --rm -v "$PWD:/data" -w /data dasmil doctor features/ --labels labels.csv --mpp 0.25
# The viewer listens on the loopback interface only: docker run --network host ... view runs/mine
# The base image is named by its tag: its digest could not be looked up without a registry. Whoever builds for others
# adds it (@sha256:...).
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm AS build
ARG TORCH_INDEX=
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
# requirements.lock has the hashes of the package index; another build of torch has others, so versions are held then
RUN python -m venv /opt/dasmil && cd /src \
 && if [ -z "$TORCH_INDEX" ]; then \
      /opt/dasmil/bin/pip install --no-cache-dir --require-hashes -r /src/requirements.lock \
      && /opt/dasmil/bin/pip install --no-deps --no-build-isolation /src; \
    else \
      /opt/dasmil/bin/pip install --no-cache-dir -c /src/constraints.txt --extra-index-url "$TORCH_INDEX" \
        "/src[slides,timm,tables,search]"; \
    fi

FROM python:${PYTHON}-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home dasmil
COPY --from=build /opt/dasmil /opt/dasmil
# the kernels need libgomp; NVIDIA's driver comes from the host (docker run --gpus all)
ENV PATH=/opt/dasmil/bin:$PATH
USER dasmil
ENTRYPOINT ["dasmil"]
CMD ["--help"]
