"""What the log says of topics' settings that do less than their names say.

Owner of these lines. Where the broker's cleaner is off (log.cleaner.enable), a topic with
cleanup.policy=compact keeps every record (what its policy promises, and more), and whoever made it
is told so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.cluster.config_topic import TOPIC_CONFIGS
from broker.cluster.topic import TopicChange
from runtime.logs import kv

if TYPE_CHECKING:
    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.topic import Topic, TopicEvent

logger = logging.getLogger(__name__)

COMPACT = "compact"
#: So many topics are named in the line at the start.
_NAMED_MAX = 5


def note_at_start(catalog: TopicCatalog, *, is_cleaner_on: bool) -> None:
    """One line for all topics that are to be compacted, and are not."""
    names = [topic.name for topic in catalog.all() if _is_to_be_compacted(catalog, topic)]
    if names and not is_cleaner_on:
        shown = ",".join(names[:_NAMED_MAX])
        logger.warning("compaction_is_off", kv(topics=len(names), first=shown))


def note_event(catalog: TopicCatalog, event: TopicEvent, *, is_cleaner_on: bool) -> None:
    """A line for a topic that is made, or changed, with what has no effect."""
    if event.change not in (TopicChange.CREATED, TopicChange.CONFIG_CHANGED):
        return
    topic = event.topic
    if topic.internal:
        return
    if _is_to_be_compacted(catalog, topic) and not is_cleaner_on:
        logger.warning("compaction_is_off", kv(topic=topic.name, records="all are kept"))
    idle = [name for name in topic.configs if TOPIC_CONFIGS.knows_without_meaning(name)]
    if idle:
        logger.warning("setting_without_effect", kv(topic=topic.name, settings=",".join(idle)))


def _is_to_be_compacted(catalog: TopicCatalog, topic: Topic) -> bool:
    return not topic.internal and COMPACT in catalog.config(topic).cleanup_policy
