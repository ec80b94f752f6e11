from t0 import compat

compat.apply()
