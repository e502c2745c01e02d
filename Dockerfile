# d7yfs as an image: docker build -t d7yfs .
#
# The mount must reach the host or a sibling container, so share the mount point and give the container /dev/fuse:
#   docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined \
#       -v /mnt/models:/mnt/models:rshared d7yfs mount --foreground s3://models/triton /mnt/models

# Both stages are the same Debian, so that the environment built in one finds the same Python and libfuse3 in the other.
FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-dev python3-venv gcc libc6-dev pkg-config libfuse3-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv /build && python3 -m venv --without-pip /opt/d7yfs
# Dependencies before the source: a change of code does not build pyfuse3 again.
COPY requirements/ requirements/
RUN /build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
    && /build/bin/pip wheel --no-cache-dir --require-hashes --no-build-isolation --wheel-dir /wheels -r requirements/runtime.txt \
    && /build/bin/pip --python /opt/d7yfs/bin/python3 install --no-index --no-deps /wheels/*.whl
COPY pyproject.toml README.md LICENSE ./
COPY d7yfs/ d7yfs/
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && /build/bin/pip --python /opt/d7yfs/bin/python3 install --no-index --no-deps /dist/*.whl

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 fuse3 ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/d7yfs /opt/d7yfs
RUN ln -s /opt/d7yfs/bin/d7yfs /usr/local/bin/d7yfs && ln -s /opt/d7yfs/bin/mount.d7yfs /sbin/mount.d7yfs
ENTRYPOINT ["d7yfs"]
CMD ["--help"]
