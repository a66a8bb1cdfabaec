"""The APIs of transactional producers: versions and handlers."""

from __future__ import annotations

from ponor_kafka.api import ApiKey

from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.handlers.produce.producer_ids import ProducerIds
from ponor_broker.handlers.transactions.add_partitions import AddPartitionsHandler
from ponor_broker.handlers.transactions.init_producer_id import InitProducerIdHandler
from ponor_broker.handlers.transactions.transaction_admin import TransactionAdminHandlers
from ponor_broker.handlers.transactions.transaction_ends import TransactionEndHandlers
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import ApiHandler, WhenFenced
from ponor_broker.transactions.coordinator import TransactionCoordinator


def transaction_handlers(
    coordinator: TransactionCoordinator,
    adds: AddPartitionsHandler,
    producer_ids: ProducerIds,
    groups: GroupCoordinator,
    topics: Topics,
) -> list[ApiHandler]:
    """Return the handlers of the six APIs."""
    ends = TransactionEndHandlers(coordinator, groups, topics)
    admin = TransactionAdminHandlers(coordinator)
    refuses = WhenFenced.REFUSES
    return [
        # InitProducerId keeps the default WhenFenced.CLOSES: on a fenced broker the handler would still give
        # new ids to producers without a transactional id.
        ApiHandler(ApiKey.INIT_PRODUCER_ID, 0, 5, InitProducerIdHandler(producer_ids, coordinator).handle),
        ApiHandler(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, adds.handle, refuses),
        ApiHandler(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, ends.add_offsets, refuses),
        ApiHandler(ApiKey.END_TXN, 0, 5, ends.end, refuses),
        ApiHandler(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, admin.describe, refuses),
        ApiHandler(ApiKey.LIST_TRANSACTIONS, 0, 2, admin.list_transactions, refuses),
    ]
