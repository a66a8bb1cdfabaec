#!/bin/bash
# Start the role of a container. Spark on Kubernetes starts its pods with the arguments `driver ...` and `executor`, and configures an executor with SPARK_* variables.
# All other arguments are a command: spark-submit, ponor, python.
set -eu

# Spark asks Hadoop for the name of the user; a pod may run under a user id without a name.
if ! getent passwd "$(id -u)" > /dev/null && [ -w /etc/passwd ]; then
  echo "spark:x:$(id -u):$(id -g):spark:${SPARK_HOME}:/bin/false" >> /etc/passwd
fi

case "${1:-}" in
  driver)
    shift
    set -- "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
      "$@"
    ;;
  executor)
    # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...: one argument each, in this order.
    options=()
    number=0
    while name="SPARK_JAVA_OPT_$number" && [ -n "${!name+set}" ]; do
      options+=("${!name}")
      number=$((number + 1))
    done
    set -- "$JAVA_HOME/bin/java" ${options[@]+"${options[@]}"} \
      "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
esac
exec "$@"
