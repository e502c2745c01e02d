# d7yfs as an image: docker build -t d7yfs .
#
# The mount must reach the host or a sibling container. So share the mount point and give the
# container /dev/fuse: | docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt
# apparmor=unconfined \ | -v /var/cache/d7yfs:/var/cache/d7yfs -v /mnt/d7yfs:/mnt/d7yfs:rshared \ |
# d7yfs mount s3://models/triton /mnt/d7yfs/models
#
# The base is pinned by its digest, and Python's packages by requirements/*.txt with hashes. apt
# installs Debian's newest packages at the time of the build. For another base: docker build
# --build-arg BASE=… -t d7yfs .

# bookworm-20260803-slim, for amd64, arm64, arm/v7, 386 and ppc64le. All stages use the same Debian:
# the environment built in one finds the same Python and libfuse3 in the other. awscrt has wheels for
# amd64 and arm64; elsewhere the first stage needs cmake and g++ as well.
ARG BASE=debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241

FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-dev python3-venv gcc libc6-dev pkg-config libfuse3-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv /build && python3 -m venv --without-pip /opt/d7yfs
# Dependencies come before the source, so that a change of code does not build pyfuse3 again.
COPY requirements/ requirements/
RUN /build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
    && /build/bin/pip wheel --no-cache-dir --require-hashes --no-build-isolation --wheel-dir /wheels \
        -r requirements/runtime.txt -r requirements/pyfuse3.txt \
    && /build/bin/pip --python /opt/d7yfs/bin/python3 install --no-index --no-deps /wheels/*.whl
COPY pyproject.toml README.md LICENSE ./
COPY man/ man/
COPY d7yfs/ d7yfs/
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && /build/bin/pip --python /opt/d7yfs/bin/python3 install --no-index --no-deps /dist/*.whl

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 fuse3 ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/d7yfs /opt/d7yfs
RUN ln -s /opt/d7yfs/bin/d7yfs /usr/local/bin/d7yfs && ln -s /opt/d7yfs/bin/mount.d7yfs /sbin/mount.d7yfs
# A container's main process must stay in the foreground. It is the mount's supervisor, which reaps
# orphans too.
ENV D7YFS_FOREGROUND=true
# The check is healthy if this container's daemon answers its mount, whatever the state of its
# stores and of the metrics' port. Only Docker uses it; Kubernetes has its own probes. d7yfs
# fuse-helper answers no mount: run it with --no-healthcheck.
HEALTHCHECK --interval=30s --timeout=20s --start-period=90s --retries=3 CMD ["d7yfs", "health", "--alive"]
ENTRYPOINT ["d7yfs"]
CMD ["--help"]
