"""
A raw table: missing values and categories
==========================================

The Palmer penguins have words, missing values and different units. A pipeline prepares the columns, and
the model penalizes standardized ones.
"""

from palmerpenguins import load_penguins
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from riskmin import CoefficientDisplay, LinearClassifier

table = load_penguins().dropna(subset=["sex"])
X, y = table.drop(columns="sex"), table["sex"]
prepare = make_column_transformer(
    (SimpleImputer(strategy="median"), make_column_selector(dtype_include="number")),
    (OneHotEncoder(sparse_output=False), make_column_selector(dtype_exclude="number")),
    verbose_feature_names_out=False,
)
model = make_pipeline(prepare, LinearClassifier("logistic", alpha=1e-3, standardize=True))
print(f"accuracy in five folds: {cross_val_score(model, X, y, cv=5).mean():.3f}")

# %%
# The weights of the standardized columns by name; positive ones speak for a male:
CoefficientDisplay.from_estimator(model.fit(X, y))
