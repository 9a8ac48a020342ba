"""x"""
from riskmin.data.base import DataError, Dataset
from riskmin.data.svmlight import load_svmlight, save_svmlight
