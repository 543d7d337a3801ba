import numpy as np

from fairbits.stats.resample import link_languages


def test_languages_are_linked_by_common_documents():
    lang, document = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 2])
    linked = link_languages(lang, document, values=np.ones(5), weights=np.ones(5))
    assert [group.columns.tolist() for group in linked] == [[0, 1], [2]]
