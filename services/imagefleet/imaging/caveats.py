"""What a variant could not keep of its source: the vocabulary of every `warnings` list."""

from enum import StrEnum


class Caveat(StrEnum):
    NOT_ENLARGED = "not_enlarged"  # the source is smaller than the box
    ALPHA_FLATTENED = "alpha_flattened"  # the format has no transparency; white shows through
    ANIMATION_FLATTENED = "animation_flattened"  # the first frame alone
    EXTRA_PICTURES_DROPPED = "extra_pictures_dropped"  # stereo pairs, previews, depth (MPO)
    GAIN_MAP_DROPPED = "gain_map_dropped"  # the HDR half of the picture
    DEPTH_REDUCED = "depth_reduced"  # to 8 bits a sample
    PROFILE_BROKEN = "profile_broken"  # taken as untagged
    PROFILE_MISMATCH = "profile_mismatch"  # made for another kind of picture; taken as untagged
    PROFILE_TOO_LARGE = "profile_too_large"  # taken as untagged
    CMYK_WITHOUT_PROFILE = "cmyk_without_profile"  # colours are a guess
    IRREGULAR_FILE = "irregular_file"  # the decoder complained and went on, or could not have
