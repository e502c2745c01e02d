"""Alibaba Cloud OSS and Huawei Cloud OBS: two dialects of one family of REST interfaces."""
