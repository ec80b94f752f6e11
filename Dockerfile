# The commands on a CPU, in an image of about 4 GB:
#
#   docker build -t t0 .
#   docker run --rm -it -v "$PWD:/data" t0 t0 init reviews reviews.csv --vocab=t5.spiece.model
#
# Not the slim image: a package of the lock has to be compiled.
FROM python:3.11-bookworm

COPY . /opt/t0
RUN bash /opt/t0/.ci/image && rm -rf /root/.cache

ENV PATH=/opt/t0/.venv/bin:$PATH
WORKDIR /data
CMD ["t0", "doctor"]
